// The register tile that all matrix work shares: up to kTileRows rows against up to kTileVecs vectors of 16 columns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "simd.h"

namespace wb {

// Largest tile: rows * vecs accumulators, vecs operands and one broadcast must fit the registers.
#if defined(__AVX512F__)
constexpr int kTileRows = 6;
constexpr int kTileVecs = 4;
#else
constexpr int kTileRows = 3;
constexpr int kTileVecs = 2;
#endif

// What a column operand stores: T itself, or int8 widened to T on the fly.
template <class T, class W>
struct Operand;

// Sixteen int8 to float. By intrinsics where there are any: GCC takes the generic conversion apart into scalars.
WB_INLINE v16f widen_int8(const char* p) {
#if defined(__AVX512F__)
  return (v16f)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
  const __m256 half[2] = {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))),
                          _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8))))};
  return load<v16f>(half);
#else
  return __builtin_convertvector(load<v16b>(p), v16f);
#endif
}

template <class T>
struct Operand<T, T> {
  static constexpr int kBytes = 64;
  static WB_INLINE v16u load_words(const char* p) { return load<v16u>(p); }
};

template <>
struct Operand<float, int8_t> {
  static constexpr int kBytes = 16;
  static WB_INLINE v16u load_words(const char* p) { return (v16u)widen_int8(p); }
};

template <>
struct Operand<bf16, int8_t> {
  static constexpr int kBytes = 32;
  // Integers up to 127 are exact in bf16: its bits are the upper half of the float's.
  static WB_INLINE v16u load_words(const char* p) {
#if WB_BF16_DOT
    return (v16u)_mm512_cvtne2ps_pbh((__m512)widen_int8(p + 16), (__m512)widen_int8(p));
#else
    // Sixteen pairs of bytes: their floats' upper halves, side by side.
    uint32_t words[kLanes];
    for (int half = 0; half < 2; ++half) {
      float wide[kLanes];
      store(wide, widen_int8(p + half * kLanes));
      for (int i = 0; i < kLanes / 2; ++i) {
        uint32_t even, odd;
        std::memcpy(&even, wide + 2 * i, 4);
        std::memcpy(&odd, wide + 2 * i + 1, 4);
        words[half * kLanes / 2 + i] = (even >> 16) | odd;
      }
    }
    return load<v16u>(words);
#endif
  }
};

// out[r][v] = sum over the words k of row[r][k] . column[v][k], the words of a column vector being `stride` bytes apart.
// Every sum runs in the order of k whatever the tile's shape is, so a row's result never depends on its neighbours.
struct TileArgs {
  const uint32_t* row[kTileRows];
  const char* column[kTileVecs];
  int words;
  size_t stride;
  size_t ahead;  // kAhead: bytes
  const char* fetch[kTileVecs];  // kLines*: memory that will be needed soon
};

// What a tile prefetches while it multiplies: nothing; its own columns, `ahead` bytes further on; or, for each word, a
// 64-byte line at each of the first 1, 2 or 4 of `fetch`.
enum class Fetch { kNone, kAhead, kLines1, kLines2, kLines4 };

constexpr int fetched_lines(Fetch mode) {
  return mode == Fetch::kLines1 ? 1 : mode == Fetch::kLines2 ? 2 : mode == Fetch::kLines4 ? 4 : 0;
}

template <class T, class W, int MR, int NV, Fetch Mode>
WB_INLINE void tile_loop(const TileArgs& t, v16f (&acc)[MR][NV]) {
  constexpr int kLines = std::min(kTileVecs, fetched_lines(Mode));
  size_t at = 0;
  const char* column[NV];
  const uint32_t* row[MR];
  for (int v = 0; v < NV; ++v) column[v] = loaded(t.column[v]);
  for (int r = 0; r < MR; ++r) row[r] = loaded(t.row[r]);
  const size_t stride = t.stride, ahead = t.ahead;
  for (int k = 0; k < t.words; ++k, at += stride) {
    v16u operand[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      operand[v] = in_register(Operand<T, W>::load_words(column[v] + at));
      if (Mode == Fetch::kAhead) __builtin_prefetch(column[v] + at + ahead);
    }
#pragma GCC unroll 8
    for (int i = 0; i < kLines; ++i)
      __builtin_prefetch(t.fetch[i] + static_cast<size_t>(k) * 64);
#pragma GCC unroll 8
    for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[r][v] = dot<T>(acc[r][v], row[r][k], operand[v]);
    }
  }
}

template <int MR, int NV>
WB_INLINE void store_tile(const v16f (&acc)[MR][NV], float* out, size_t out_stride) {
#pragma GCC unroll 8
  for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) store16(out + static_cast<size_t>(r) * out_stride + v * kLanes, acc[r][v]);
  }
}

template <class T, class W, int MR, int NV>
__attribute__((noinline)) void tile_kernel(const TileArgs& t, Fetch mode, float* out, size_t out_stride) {
  v16f acc[MR][NV] = {};
  // Few lines a word are wanted by full tiles only (others are left out to keep the build short).
  constexpr Fetch kOne = MR == kTileRows ? Fetch::kLines1 : Fetch::kNone;
  constexpr Fetch kTwo = MR == kTileRows ? Fetch::kLines2 : Fetch::kNone;
  if (mode == Fetch::kAhead)
    tile_loop<T, W, MR, NV, Fetch::kAhead>(t, acc);
  else if (std::is_same_v<T, W> && mode == Fetch::kLines4)
    tile_loop<T, T, MR, NV, Fetch::kLines4>(t, acc);
  else if (std::is_same_v<T, W> && mode == Fetch::kLines2)
    tile_loop<T, T, MR, NV, kTwo>(t, acc);
  else if (std::is_same_v<T, W> && mode == Fetch::kLines1)
    tile_loop<T, T, MR, NV, kOne>(t, acc);
  else
    tile_loop<T, W, MR, NV, Fetch::kNone>(t, acc);
  store_tile(acc, out, out_stride);
}

// Row r of the tile goes to out + r * out_stride.
template <class T, class W>
WB_INLINE void run_tile(const TileArgs& t, int rows, int vecs, Fetch mode, float* out, size_t out_stride) {
  using Kernel = void (*)(const TileArgs&, Fetch, float*, size_t);
#define WB_ROW(MR) {tile_kernel<T, W, MR, 1>, tile_kernel<T, W, MR, 2>, tile_kernel<T, W, MR, 3>, tile_kernel<T, W, MR, 4>}
#define WB_ROW2(MR) {tile_kernel<T, W, MR, 1>, tile_kernel<T, W, MR, 2>}
#if defined(__AVX512F__)
  static constexpr Kernel kKernels[kTileRows][kTileVecs] = {WB_ROW(1), WB_ROW(2), WB_ROW(3), WB_ROW(4), WB_ROW(5), WB_ROW(6)};
#else
  static constexpr Kernel kKernels[kTileRows][kTileVecs] = {WB_ROW2(1), WB_ROW2(2), WB_ROW2(3)};
#endif
#undef WB_ROW
#undef WB_ROW2
  kKernels[rows - 1][vecs - 1](t, mode, out, out_stride);
}

}  // namespace wb
