// The softmax between attention's two products on the matrix unit: from scores to weights, both as matrix_attention.h lays them.
#pragma once

#include "matrix_attention.h"

namespace wb {

#if WB_AMX

// Scores to weights exp(scale * (score - max)) for the rows of one pass; tokens after a row's own position, and places that hold
// none, get zero.
class MatrixSoftmax {
 public:
  const float* scores;
  uint32_t* weights;
  float* max;  // of each row, in units of the exponent of two
  float* sum;
  float scale_log2;
  int subs;
  bool whole_blocks;  // no sub-block has places without tokens
  int first_position, first_row, group;
  const int* first_token;  // of each sub-block of the tile
  const int* capacity;

 private:
  // Where a row starts in an operand of `tiles` tiles for each A tile.
  static int line(int r, int tiles) { return (r / kUnitHeight * tiles * kUnitHeight + r % kUnitHeight) * kLanes; }
  int visible(int r) const { return first_position + (first_row + r) / group + 1; }

  // Sub-blocks without holes that the row sees as a whole come first; they need no mask.
  int seen_whole(int r) const {
    return whole_blocks ? std::min(subs, std::max(0, visible(r) - first_token[0]) / kLanes) : 0;
  }

  // How many of a sub-block's tokens the row sees: at most 0 if there is no such sub-block.
  WB_INLINE auto seen(int r) const {
    return [this, last = visible(r)](int sub) { return std::min(last - first_token[sub], capacity[sub]); };
  }

  template <class Seen>
  static WB_INLINE float peak(const float* from, int whole, int count, Seen&& seen) {
    v16f peaks = splat(-__builtin_inff());
#pragma GCC unroll 16
    for (int i = 0; i < whole; ++i) peaks = max16(peaks, load16(from + i * kUnitTile));
    for (int i = whole; i < count; ++i)
      peaks = max16(peaks, lane_index() < seen(i) ? load16(from + i * kUnitTile) : splat(-__builtin_inff()));
    return reduce_max(peaks);
  }

  // Returns the sum of the row's weights.
  template <class Seen>
  WB_INLINE float exponentials(const float* from, uint32_t* to, int whole, int count, float row_max, Seen&& seen) const {
    const v16f scale = splat(scale_log2), shift = splat(-row_max);
    const auto weight = [&](int i) { return exp2_for_bf16(fma16(load16(from + i * kUnitTile), scale, shift)); };
    v16f even = {}, odd = {};
    int i = 0;
#pragma GCC unroll 4
    for (; i + 2 <= whole; i += 2) {
      const v16f a = weight(i), b = weight(i + 1);
      even += a;
      odd += b;
      store(to + i / 2 * kUnitTile, (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a));
    }
    for (; i < count; i += 2) {
      const v16f a = lane_index() < seen(i) ? weight(i) : v16f{};
      const v16f b = lane_index() < seen(i + 1) ? weight(i + 1) : v16f{};
      even += a;
      odd += b;
      store(to + i / 2 * kUnitTile, (__m512i)_mm512_cvtne2ps_pbh((__m512)b, (__m512)a));
    }
    return reduce_add(even + odd);
  }

 public:
  WB_INLINE void find_max(int r) const {
    const float* from = scores + line(r, kTileSubBlocks);
    const int whole = seen_whole(r);
    max[r] = scale_log2 * (whole == kTileSubBlocks ? peak(from, kTileSubBlocks, kTileSubBlocks, seen(r))
                                                   : peak(from, whole, subs, seen(r)));
  }

  WB_INLINE void weigh(int r) const {
    const float* from = scores + line(r, kTileSubBlocks);
    uint32_t* to = weights + line(r, kTileSubBlocks / 2);
    const int whole = seen_whole(r);
    sum[r] = whole == kTileSubBlocks ? exponentials(from, to, kTileSubBlocks, kTileSubBlocks, max[r], seen(r))
                                     : exponentials(from, to, whole, subs, max[r], seen(r));
  }
};

#endif

}  // namespace wb
