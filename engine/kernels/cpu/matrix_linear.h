// Linear layers on the matrix unit (amx.h): the same packed panels, 32 rows at a time.
#pragma once

#include "amx.h"
#include "tile.h"

namespace wb {

constexpr int kPairRows = 2 * kUnitHeight;
constexpr size_t kStepBytes = kUnitWords * 128;  // of a panel, widened: what one step of 16 words reads

#if WB_AMX

inline TileShapes linear_shapes() {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) shapes.set(tile, kUnitHeight, kUnitWords);
  return shapes;
}

// One step of a panel as bf16. Int8: widened into one half of `ring`, two steps long.
template <bool Int8>
WB_INLINE const char* panel_step(const char* panel, int step, char* ring) {
  if (!Int8) return panel + static_cast<size_t>(step) * kStepBytes;
  char* to = ring + static_cast<size_t>(step & 1) * kStepBytes;
  const char* from = panel + static_cast<size_t>(step) * (kStepBytes / 2);
#pragma GCC unroll 4
  for (size_t i = 0; i < kStepBytes / 64; ++i) store(to + i * 64, Operand<bf16, int8_t>::load_words(from + i * 32));
  return to;
}

// One or two A tiles of rows at `x` against one panel of 32 columns; `result` gets [16 or 32, result_stride] floats.
// `ahead`: how far on to prefetch the panel, or 0.
template <bool Two, bool Int8>
__attribute__((noinline)) void panel_kernel(const char* x, size_t x_stride, const char* panel, int steps, size_t ahead,
                                            char* ring, float* result, size_t result_stride) {
  const char* low = x + kUnitHeight * x_stride;
  constexpr size_t kStored = Int8 ? kStepBytes / 2 : kStepBytes;
  WB_TILE_ZERO(0);
  WB_TILE_ZERO(1);
  if (Two) {
    WB_TILE_ZERO(2);
    WB_TILE_ZERO(3);
  }
  for (int step = 0; step < steps; ++step) {
    if (ahead) {
      const char* soon = panel + static_cast<size_t>(step) * kStored + ahead;
#pragma GCC unroll 32
      for (size_t i = 0; i < kStored; i += 64) __builtin_prefetch(soon + i);
    }
    const char* b = panel_step<Int8>(panel, step, ring);
    WB_TILE_LOAD(4, x + step * 64, x_stride);
    WB_TILE_LOAD(6, b, 128);
    WB_TILE_LOAD(7, b + 64, 128);
    WB_TILE_DOT(0, 4, 6);
    WB_TILE_DOT(1, 4, 7);
    if (Two) {
      WB_TILE_LOAD(5, low + step * 64, x_stride);
      WB_TILE_DOT(2, 5, 6);
      WB_TILE_DOT(3, 5, 7);
    }
  }
  WB_TILE_STORE(0, result, result_stride * 4);
  WB_TILE_STORE(1, result + kLanes, result_stride * 4);
  if (Two) {
    WB_TILE_STORE(2, result + kUnitHeight * result_stride, result_stride * 4);
    WB_TILE_STORE(3, result + kUnitHeight * result_stride + kLanes, result_stride * 4);
  }
}

// `rows` (1..32) rows at `x`, `x_words` (a multiple of 16) each; 32 rows are readable.
WB_INLINE void run_panel(const uint32_t* x, size_t x_words, int rows, const char* panel, bool int8, size_t ahead, char* ring,
                         float* result, size_t result_stride) {
  const char* a = reinterpret_cast<const char*>(x);
  const int steps = static_cast<int>(x_words) / kUnitWords;
  if (rows > kUnitHeight) {
    if (int8)
      panel_kernel<true, true>(a, x_words * 4, panel, steps, ahead, ring, result, result_stride);
    else
      panel_kernel<true, false>(a, x_words * 4, panel, steps, ahead, ring, result, result_stride);
  } else {
    if (int8)
      panel_kernel<false, true>(a, x_words * 4, panel, steps, ahead, ring, result, result_stride);
    else
      panel_kernel<false, false>(a, x_words * 4, panel, steps, ahead, ring, result, result_stride);
  }
}

#endif

}  // namespace wb
