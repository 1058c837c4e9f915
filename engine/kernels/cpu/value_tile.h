// The tile of attention's second product: rows of weights against the values of scattered sub-blocks.
#pragma once

#include "attention_plan.h"
#include "tile.h"

namespace wb {

// out[r][v] = sum over tokens of weights[r] * value, for `vecs` vectors of 16 dimensions; words of tokens are `stride` bytes apart.
struct ValueArgs {
  const uint32_t* weights[kTileRows];
  const char* values[kTileSubBlocks];
  int sub_blocks;
  size_t stride;
  const char* const* fetch;  // per sub-block, kFetchLines 64-byte lines per word to prefetch, or null
};

constexpr int kFetchLines = 4;

template <class T, int MR, int NV, bool Fetching>
WB_INLINE void value_loop(const ValueArgs& t, v16f (&acc)[MR][NV]) {
  constexpr int kWords = kLanes / kPerWord<T>;
  const uint32_t* row[MR];
  for (int r = 0; r < MR; ++r) row[r] = loaded(t.weights[r]);
  const size_t stride = t.stride;
  for (int s = 0; s < t.sub_blocks; ++s) {
    const char* value = t.values[s];
    for (int k = 0; k < kWords; ++k, value += stride) {
      v16u operand[NV];
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) operand[v] = in_register(load<v16u>(value + v * 64));
      if (Fetching) {
#pragma GCC unroll 8
        for (int i = 0; i < kFetchLines; ++i) __builtin_prefetch(t.fetch[s] + (k * kFetchLines + i) * 64);
      }
#pragma GCC unroll 8
      for (int r = 0; r < MR; ++r) {
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) acc[r][v] = dot<T>(acc[r][v], row[r][k], operand[v]);
      }
    }
    for (int r = 0; r < MR; ++r) row[r] += kWords;
  }
}

template <class T, int MR, int NV>
__attribute__((noinline)) void value_kernel(const ValueArgs& t, float* out, size_t out_stride) {
  v16f acc[MR][NV] = {};
  if (t.fetch)
    value_loop<T, MR, NV, true>(t, acc);
  else
    value_loop<T, MR, NV, false>(t, acc);
  store_tile(acc, out, out_stride);
}

template <class T>
WB_INLINE void run_values(const ValueArgs& t, int rows, int vecs, float* out, size_t out_stride) {
  using Kernel = void (*)(const ValueArgs&, float*, size_t);
#define WB_ROW(MR) {value_kernel<T, MR, 1>, value_kernel<T, MR, 2>, value_kernel<T, MR, 3>, value_kernel<T, MR, 4>}
#define WB_ROW2(MR) {value_kernel<T, MR, 1>, value_kernel<T, MR, 2>}
#if defined(__AVX512F__)
  static constexpr Kernel kKernels[kTileRows][kTileVecs] = {WB_ROW(1), WB_ROW(2), WB_ROW(3), WB_ROW(4), WB_ROW(5), WB_ROW(6)};
#else
  static constexpr Kernel kKernels[kTileRows][kTileVecs] = {WB_ROW2(1), WB_ROW2(2), WB_ROW2(3)};
#endif
#undef WB_ROW
#undef WB_ROW2
  kKernels[rows - 1][vecs - 1](t, out, out_stride);
}

}  // namespace wb
