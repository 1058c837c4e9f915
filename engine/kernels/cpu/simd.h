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

// e^x by Cody-Waite reduction and a degree-6 polynomial; relative error below 3e-7, x clamped to the range of normal floats.
WB_INLINE v16f exp16(v16f x) {
  x = min16(max16(x, splat(-87.0f)), splat(88.0f));
  const v16f shift = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const v16f n = fma16(x, splat(1.44269504f), shift) - shift;
  v16f r = fma16(n, splat(-0.693359375f), x);
  r = fma16(n, splat(2.12194440e-4f), r);
  v16f p = splat(1.9875691500e-4f);
  p = fma16(p, r, splat(1.3981999507e-3f));
  p = fma16(p, r, splat(8.3334519073e-3f));
  p = fma16(p, r, splat(4.1665795894e-2f));
  p = fma16(p, r, splat(1.6666665459e-1f));
  p = fma16(p, r, splat(5.0000001201e-1f));
  p = fma16(p, r * r, r + 1.0f);
  const v16i e = __builtin_convertvector(n, v16i);
  return p * (v16f)((e + 127) << 23);
}

WB_INLINE float exp1(float x) {
  return exp16(splat(x))[0];
}

}  // namespace wb
