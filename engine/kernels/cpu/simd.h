// Sixteen-lane vectors on GCC/Clang vector extensions: one zmm with AVX-512, two ymm with AVX2, four xmm (or NEON
// registers) elsewhere. The only intrinsics are those the extensions cannot express: bf16 dot products and conversions.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__AVX512BF16__) && defined(__AVX512F__)
#define WB_BF16_DOT 1
#else
#define WB_BF16_DOT 0
#endif

#define WB_INLINE inline __attribute__((always_inline))

namespace wb {

constexpr int kLanes = 16;

typedef float v16f __attribute__((vector_size(64)));
typedef uint32_t v16u __attribute__((vector_size(64)));
typedef int32_t v16i __attribute__((vector_size(64)));
typedef uint16_t v16h __attribute__((vector_size(32)));
typedef int8_t v16b __attribute__((vector_size(16)));

struct bf16 {
  uint16_t bits;
};

// An element type T travels in 32-bit words: one float, or a pair of bf16 (low half = lower index). Every matrix kernel
// works on words, so fp32 and bf16 share all code but `dot`.
template <class T>
constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));

constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }

template <class V>
WB_INLINE V load(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

template <class V>
WB_INLINE void store(void* p, V v) {
  std::memcpy(p, &v, sizeof(V));
}

// Make the compiler keep `v` in its register: GCC otherwise loads an operand again for every product that uses it.
WB_INLINE v16u in_register(v16u v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#endif
  return v;
}

// Read pointers one by one: GCC otherwise copies arrays of them by vector moves, which wait for the stores that have just
// written the single pointers to leave the store buffer.
template <class P>
WB_INLINE P* loaded(P* p) {
#if defined(__x86_64__)
  asm("" : "+r"(p));
#endif
  return p;
}

WB_INLINE v16f splat(float x) { return v16f{} + x; }
WB_INLINE v16i lane_index() { return v16i{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

WB_INLINE float as_float(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

WB_INLINE float to_float(float x) { return x; }
WB_INLINE float to_float(bf16 x) { return as_float(static_cast<uint32_t>(x.bits) << 16); }

WB_INLINE bf16 round_bf16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if (x != x) return bf16{static_cast<uint16_t>((u >> 16) | 0x40)};
  return bf16{static_cast<uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}

template <class T>
WB_INLINE T from_float(float x);
template <>
WB_INLINE float from_float<float>(float x) { return x; }
template <>
WB_INLINE bf16 from_float<bf16>(float x) { return round_bf16(x); }

// Sixteen consecutive elements, widened to fp32 or rounded (to nearest even) from it.
WB_INLINE v16f load16(const float* p) { return load<v16f>(p); }
WB_INLINE v16f load16(const bf16* p) { return (v16f)(__builtin_convertvector(load<v16h>(p), v16u) << 16); }

WB_INLINE void store16(float* p, v16f v) { store(p, v); }
WB_INLINE void store16(bf16* p, v16f v) {
#if WB_BF16_DOT
  store(p, (__m256i)_mm512_cvtneps_pbh((__m512)v));
#else
  const v16u u = (v16u)v;
  const v16u rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
  const v16u quiet_nan = (u >> 16) | 0x40;
  store(p, __builtin_convertvector(v == v ? rounded : quiet_nan, v16h));
#endif
}

// Sixteen elements, one a word: consecutive floats, or every other bf16, what lies between being left alone.
WB_INLINE void store_spread(float* p, v16f v) { store16(p, v); }
WB_INLINE void store_spread(bf16* p, v16f v) {
#if WB_BF16_DOT && defined(__AVX512BW__)
  const __m512i words = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)v));
  _mm512_mask_storeu_epi16(p, 0x55555555u, words);
#else
  bf16 lanes[kLanes];
  store16(lanes, v);
  for (int i = 0; i < kLanes; ++i) p[2 * i] = lanes[i];
#endif
}

// First n (1..16) elements only.
template <class T>
WB_INLINE void store_partial(T* p, v16f v, int n) {
  if (n >= kLanes) return store16(p, v);
  T lanes[kLanes];
  store16(lanes, v);
  std::memcpy(p, lanes, sizeof(T) * static_cast<size_t>(n));
}

WB_INLINE v16f fma16(v16f a, v16f b, v16f c) {
#if defined(__AVX512F__)
  return (v16f)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
  return a * b + c;
#endif
}

// acc[lane] += dot(word a, word w[lane]).
template <class T>
WB_INLINE v16f dot(v16f acc, uint32_t a, v16u w);

template <>
WB_INLINE v16f dot<float>(v16f acc, uint32_t a, v16u w) {
  return fma16(splat(as_float(a)), (v16f)w, acc);
}

template <>
WB_INLINE v16f dot<bf16>(v16f acc, uint32_t a, v16u w) {
#if WB_BF16_DOT
  return (v16f)_mm512_dpbf16_ps((__m512)acc, (__m512bh)_mm512_set1_epi32(static_cast<int>(a)), (__m512bh)w);
#else
  acc = fma16(splat(as_float(a << 16)), (v16f)(w << 16), acc);
  return fma16(splat(as_float(a & 0xffff0000u)), (v16f)(w & 0xffff0000u), acc);
#endif
}

WB_INLINE float reduce_add(v16f v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#endif
  float lanes[kLanes];
  store(lanes, v);
  for (int step = kLanes / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  return lanes[0];
}

WB_INLINE float reduce_max(v16f v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#endif
  float lanes[kLanes];
  store(lanes, v);
  for (int step = kLanes / 2; step > 0; step /= 2)
    for (int i = 0; i < step; ++i) lanes[i] = lanes[i] > lanes[i + step] ? lanes[i] : lanes[i + step];
  return lanes[0];
}

WB_INLINE v16f max16(v16f a, v16f b) { return a > b ? a : b; }
WB_INLINE v16f min16(v16f a, v16f b) { return a < b ? a : b; }

// 2^(n + f) with n the nearest integer to `x` and f = the rest, given by `fraction(n)`: a degree-5 minimax polynomial of
// f in [-1/2, 1/2], relative error below 2e-7. x <= 127; below -126 the result fades to zero.
template <class Fraction>
WB_INLINE v16f power_of_two(v16f x, Fraction&& fraction) {
#if defined(__AVX512F__)
  const v16f n = (v16f)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  x = max16(x, splat(-126.0f));
  const v16f shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const v16f n = x + shift - shift;
#endif
  const v16f f = fraction(x, n);
  v16f p = splat(1.32647273e-3f);
  p = fma16(p, f, splat(9.67151299e-3f));
  p = fma16(p, f, splat(5.55073358e-2f));
  p = fma16(p, f, splat(2.40222424e-1f));
  p = fma16(p, f, splat(6.93147004e-1f));
  p = fma16(p, f, splat(1.0f));
#if defined(__AVX512F__)
  return (v16f)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
  return p * (v16f)((__builtin_convertvector(n, v16i) + 127) << 23);
#endif
}

WB_INLINE v16f exp2_16(v16f x) {
  return power_of_two(x, [](v16f clamped, v16f n) { return clamped - n; });
}

constexpr float kLog2E = 1.44269502f;

// e^x, x clamped to the range of normal floats; log2(e) is carried in two floats, so that large x lose nothing.
WB_INLINE v16f exp16(v16f x) {
  x = min16(max16(x, splat(-87.0f)), splat(88.0f));
  return power_of_two(x * kLog2E, [x](v16f, v16f n) {
    return fma16(x, splat(1.92596303e-8f), fma16(x, splat(kLog2E), -n));
  });
}

#if defined(__AVX512DQ__)
// 2^x for what is rounded to bf16 afterwards: relative error below 8e-5, a fiftieth of what the rounding does. A cubic minimax
// polynomial of x - floor(x); the scaling instruction takes floor(x) itself.
WB_INLINE v16f exp2_for_bf16(v16f x) {
  const v16f f = (v16f)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  v16f p = fma16(splat(7.80245233e-2f), f, splat(2.26067159e-1f));
  p = fma16(p, f, splat(6.95833537e-1f));
  p = fma16(p, f, splat(9.99925219e-1f));
  return (v16f)_mm512_scalef_ps((__m512)p, (__m512)x);
}
#endif

}  // namespace wb
