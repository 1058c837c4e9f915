// Paged attention for decode and for prefill chunks, in one kernel.
//
// A unit of work is some consecutive tokens of one request and one KV head: all query heads that share it are rows of the
// same unit, so keys and values are read once for the group. The context is walked in tiles of 16 sub-blocks counted from
// its start (FlashAttention's tiling). Against each, a pass of as many rows as register tiles hold goes through scores, maximum,
// exponentials and weighted values while these are in the first-level cache, then are merged with what came before (online
// softmax). Tile limits depend on nothing but the position in the sequence, and tiles are merged in order, so a row's result
// is the same bits alone, batched, or in another chunk. That also lets a long context be split over threads: tiles are then
// kept as partial results and merged, in the same order, by `merge_split`.
#pragma once

#include "attention_tile.h"
#include "matrix_softmax.h"
#include "team.h"
#include "value_tile.h"

namespace wb {

constexpr float kMinusInf = -__builtin_inff();

template <class T>
class PagedAttention {
 public:
  PagedAttention() = default;
  PagedAttention(const KvGeometry& geometry, int heads, float scale)
      : g_(geometry), heads_(heads), group_(heads / geometry.kv_heads), scale_log2_(scale * kLog2E) {
    on_unit_ = on_matrix_unit<T>(g_.dim_words);
    tile_rows_ = on_unit_ ? kUnitHeight : kTileRows;
    pass_rows_ = on_unit_ && in_pairs(g_.dim_words) ? kPassRows : tile_rows_;
    rows_ = std::max(kUnitRows, group_);
    query_words_ = static_cast<size_t>(g_.dim_words);
    partial_floats_ = static_cast<size_t>(group_) * static_cast<size_t>(g_.dim_padded + 2);
  }

  int group() const { return group_; }
  size_t scratch_bytes() const { return carve(nullptr).bytes; }
  size_t partial_bytes(const AttentionPlan& plan) const { return static_cast<size_t>(plan.partials) * partial_floats_ * 4; }

  // All units of the plan, shared by the team. `query` is [T, heads, dim_words], `out` [T, out_stride] elements of T.
  void run(const AttentionPlan& plan, const AttentionBatch& batch, const char* layer, const uint32_t* query, T* out,
           size_t out_stride, float* partials, char* scratch_memory, int threads, Stage& stage) const {
    const Scratch scratch = carve(scratch_memory);
    stage.run(static_cast<int>(plan.units.size()), [&](int i) {
      // Most likely this thread's next unit: its keys are fetched while this one ends.
      const size_t next = std::min(plan.units.size() - 1, static_cast<size_t>(i + threads));
      attend(plan.units[static_cast<size_t>(i)], plan.units[next], batch, layer, query, out, out_stride, partials, scratch);
    });
  }

  // Afterwards: merge the tiles of contexts that were split.
  void merge_split(const AttentionPlan& plan, T* out, size_t out_stride, const float* partials, char* scratch_memory,
                   Stage& stage) const {
    const Scratch scratch = carve(scratch_memory);
    stage.run(static_cast<int>(plan.splits.size()), [&](int i) {
      const SplitRow& split = plan.splits[static_cast<size_t>(i)];
      start_rows(scratch, group_);
      for (int tile = 0; tile < split.tiles; ++tile) {
        const float* p = partials + static_cast<size_t>(split.partial + tile) * partial_floats_;
        for (int row = 0; row < group_; row += tile_rows_)
          merge_tile(scratch, row, std::min(tile_rows_, group_ - row), p + row, p + group_ + row,
                     p + 2 * group_ + row * g_.dim_padded);
      }
      write_rows(scratch, out, out_stride, split.row, split.kv_head, group_);
    });
  }

 private:
  struct Scratch {
    uint32_t* query;  // [rows, dim_words]: the unit's, side by side (matrix unit only)
    float* scores;  // [tile rows, kTileTokens]
    uint32_t* weights;  // [tile rows, kTileTokens / per word]
    float* tile_out;  // [tile rows, dim_padded]
    float* tile_max;  // [kLanes]: of a tile's rows; like `max` in units of the exponent of two
    float* tile_sum;
    float* out;  // [rows, dim_padded]
    float* max;  // [row tiles, kLanes]
    float* sum;
    char* values;  // sub-blocks with unwritten tokens, copied with zeros in their place
    size_t bytes;
  };

  Scratch carve(char* memory) const {
    Scratch s;
    const size_t dims = static_cast<size_t>(g_.dim_padded), pass_rows = static_cast<size_t>(pass_rows_);
    const size_t rows = static_cast<size_t>(round_up(rows_, pass_rows_)), row_tiles = rows / static_cast<size_t>(tile_rows_);
    const size_t slots = pass_rows_ == kPassRows ? 2 : 1;  // passes and tiles that are in flight at once
    size_t at = 0;
    const auto take = [&](size_t bytes) {
      char* p = memory + at;
      at += (bytes + 63) / 64 * 64;
      return p;
    };
    s.query = reinterpret_cast<uint32_t*>(take(on_unit_ ? rows * query_words_ * 4 : 0));
    s.scores = reinterpret_cast<float*>(take(slots * pass_rows * kTileTokens * 4));
    s.weights = reinterpret_cast<uint32_t*>(take(slots * pass_rows * kTileTokens * sizeof(T)));
    s.tile_out = reinterpret_cast<float*>(take(pass_rows * dims * 4));
    s.tile_max = reinterpret_cast<float*>(take(slots * 2 * kLanes * 4));
    s.tile_sum = reinterpret_cast<float*>(take(slots * 2 * kLanes * 4));
    s.out = reinterpret_cast<float*>(take(rows * dims * 4));
    s.max = reinterpret_cast<float*>(take(row_tiles * kLanes * 4));
    s.sum = reinterpret_cast<float*>(take(row_tiles * kLanes * 4));
    s.values = take(slots * kTileSubBlocks * g_.value_bytes);
    s.bytes = at;
    return s;
  }

  void start_rows(const Scratch& s, int rows) const {
    const int lanes = ceil_div(rows, tile_rows_) * kLanes;
    std::fill_n(s.max, lanes, kMinusInf);
    std::fill_n(s.sum, lanes, 0.0f);
    std::memset(s.out, 0, static_cast<size_t>(rows * g_.dim_padded) * 4);
  }

  // Rows [row, row + rows), one row tile: what tiles so far gave, and one more. Lanes past the tile's rows hold anything.
  void merge_tile(const Scratch& s, int row, int rows, const float* tile_max, const float* tile_sum,
                  const float* tile_out) const {
    float *max = s.max + row / tile_rows_ * kLanes, *sum = s.sum + row / tile_rows_ * kLanes;
    const v16f old_max = load16(max), old_sum = load16(sum), new_max = load16(tile_max), new_sum = load16(tile_sum);
    const v16f peak = max16(old_max, new_max);
    // A sum of zero: no token was visible to the row.
    const v16f old_scale = old_sum == 0.0f ? v16f{} : exp2_16(old_max - peak);
    const v16f new_scale = new_sum == 0.0f ? v16f{} : exp2_16(new_max - peak);
    store16(max, peak);
    store16(sum, old_sum * old_scale + new_sum * new_scale);
    for (int r = 0; r < rows; ++r) {
      float* out = s.out + (row + r) * g_.dim_padded;
      const float* add = tile_out + r * g_.dim_padded;
      for (int d = 0; d < g_.dim_padded; d += kLanes)
        store16(out + d, fma16(load16(add + d), splat(new_scale[r]), load16(out + d) * old_scale[r]));
    }
  }

  void write_rows(const Scratch& s, T* out, size_t stride, int first_row, int kv_head, int rows) const {
    for (int r = 0; r < rows; ++r) {
      T* to = out + static_cast<size_t>(first_row + r / group_) * stride +
              static_cast<size_t>((kv_head * group_ + r % group_) * g_.head_dim);
      const float inverse = 1.0f / s.sum[r / tile_rows_ * kLanes + r % tile_rows_];
      for (int d = 0; d < g_.head_dim; d += kLanes)
        store_partial(to + d, load16(s.out + r * g_.dim_padded + d) * inverse, g_.head_dim - d);
    }
  }

  void attend(const AttentionUnit& unit, const AttentionUnit& next, const AttentionBatch& batch, const char* layer,
              const uint32_t* query, T* out, size_t out_stride, float* partials, const Scratch& s) const {
    const int rows = unit.tokens * group_;
    const int limit = visible_to(unit, batch), first_position = limit - unit.tokens;
    const uint32_t* q = query + (static_cast<size_t>(unit.first_row) * static_cast<size_t>(heads_) +
                                 static_cast<size_t>(unit.kv_head * group_)) * query_words_;
    if (unit.partial < 0) start_rows(s, rows);
    if (on_unit_) start_matrix_unit(q, rows, s);
#if WB_AMX
    if (pass_rows_ == kPassRows && rows > kUnitHeight) {
      attend_pipelined(unit, next, batch, layer, partials, s);
      if (unit.partial < 0) write_rows(s, out, out_stride, unit.first_row, unit.kv_head, rows);
      return;
    }
#endif
    AttentionTile tiles[2];
    locate(g_, unit, unit.tile_begin, batch, layer, tiles[0]);
    for (int tile = unit.tile_begin; tile < unit.tile_end; ++tile) {
      AttentionTile &t = tiles[(tile - unit.tile_begin) & 1], &following = tiles[(tile - unit.tile_begin + 1) & 1];
      if (tile + 1 < unit.tile_end)
        locate(g_, unit, tile + 1, batch, layer, following);
      else
        locate(g_, next, next.tile_begin, batch, layer, following);
      bool first = true;  // of the passes that see this tile: it meets memory that is not in the cache yet
      for (int row = 0; row < rows; row += pass_rows_) {
        const int pass_rows = std::min(pass_rows_, rows - row);
        const int visible = first_position + (row + pass_rows - 1) / group_ + 1;  // to the last row
        const int subs = std::min(t.count, g_.touched(visible) - tile * kTileSubBlocks);
        if (subs <= 0) continue;
        score(q, row, pass_rows, subs, t, first, s);
        softmax(first_position, row, pass_rows, subs, t, s);
        if (first) on_unit_ ? gather_values<T>(g_, t, limit, s.values) : hide_unwritten<T>(g_, t, limit, s.values);
        weigh(pass_rows, subs, t, first ? &following : nullptr, s);
        first = false;
        keep_pass(unit, tile, row, pass_rows, s.tile_max, s.tile_sum, partials, s);
      }
    }
    if (unit.partial < 0) write_rows(s, out, out_stride, unit.first_row, unit.kv_head, rows);
  }

  // What a pass gave: merged with earlier tiles, or kept as it is for `merge_split`.
  void keep_pass(const AttentionUnit& unit, int tile, int row, int rows, const float* tile_max, const float* tile_sum,
                 float* partials, const Scratch& s) const {
    for (int r = 0; r < rows; r += tile_rows_) {
      const int tile_rows = std::min(tile_rows_, rows - r);
      const float* tile_out = s.tile_out + r * g_.dim_padded;
      if (unit.partial < 0) {
        merge_tile(s, row + r, tile_rows, tile_max + r, tile_sum + r, tile_out);
      } else {
        float* p = partials + static_cast<size_t>(unit.partial + tile - unit.tile_begin) * partial_floats_;
        std::copy_n(tile_max + r, tile_rows, p + row + r);
        std::copy_n(tile_sum + r, tile_rows, p + group_ + row + r);
        std::copy_n(tile_out, tile_rows * g_.dim_padded, p + 2 * group_ + (row + r) * g_.dim_padded);
      }
    }
  }

#if WB_AMX
  MatrixSoftmax unit_softmax(int first_position, int row, int subs, const AttentionTile& t, int slot, const Scratch& s) const {
    return {s.scores + slot * kPassRows * kTileTokens,
            s.weights + slot * kPassRows * kTileTokens / kPerWord<T>,
            s.tile_max + slot * kPassRows,
            s.tile_sum + slot * kPassRows,
            scale_log2_,
            subs,
            g_.block_size % kLanes == 0,
            first_position,
            row,
            group_,
            t.first_token,
            t.capacity};
  }

  void attend_pipelined(const AttentionUnit& unit, const AttentionUnit& next, const AttentionBatch& batch, const char* layer,
                        float* partials, const Scratch& s) const;
#endif

  const uint32_t* query_row(const uint32_t* q, int row) const {
    return q + static_cast<size_t>(row / group_ * heads_ + row % group_) * query_words_;
  }

  void start_matrix_unit([[maybe_unused]] const uint32_t* q, [[maybe_unused]] int rows, [[maybe_unused]] const Scratch& s) const {
#if WB_AMX
    load_shapes(attention_shapes(g_.dim_words));
    for (int r = 0; r < rows; ++r)
      std::copy_n(query_row(q, r), query_words_, s.query + static_cast<size_t>(r) * query_words_);
#endif
  }

  // The first rows to read the keys also fetch the values that go with them.
  void score(const uint32_t* q, int row, int rows, int subs, const AttentionTile& t, bool first, const Scratch& s) const {
#if WB_AMX
    if (on_unit_)
      return matrix_scores(s.query + static_cast<size_t>(row) * query_words_, g_.dim_words, t.keys, subs,
                           {first ? t.values : nullptr, g_.value_bytes}, s.scores);
#endif
    TileArgs tile;
    tile.words = g_.dim_words;
    tile.stride = 64;
    for (int r = 0; r < rows; ++r) tile.row[r] = query_row(q, row + r);
    for (int sub = 0; sub < subs; sub += kTileVecs) {
      const int vecs = std::min(kTileVecs, subs - sub);
      std::copy_n(t.keys + sub, vecs, tile.column);
      for (int v = 0; v < kTileVecs; ++v) tile.fetch[v] = t.values[sub + std::min(v, vecs - 1)];
      run_tile<T, T>(tile, rows, vecs, first ? Fetch::kLines4 : Fetch::kNone, s.scores + sub * kLanes, kTileTokens);
    }
  }

  // Scores to weights exp(scale * (score - max)); tokens after the row's own position, and places that hold none, get zero.
  // All rows' maxima first: a reduction takes long, and rows don't wait for each other's.
  void softmax(int first_position, int row, int rows, int subs, const AttentionTile& t, const Scratch& s) const {
    const auto visible = [&](int r) { return first_position + (row + r) / group_ + 1; };
    // Sub-blocks without holes that the row sees as a whole come first; they need no mask.
    const auto whole = [&](int r) {
      return g_.block_size % kLanes ? 0 : std::min(subs, std::max(0, visible(r) - t.first_token[0]) / kLanes);
    };
#if WB_AMX
    if (on_unit_) {
      const MatrixSoftmax rows_of = unit_softmax(first_position, row, subs, t, 0, s);
      for (int r = 0; r < rows; ++r) rows_of.find_max(r);
      for (int r = 0; r < rows; ++r) rows_of.weigh(r);
      return;
    }
#endif
    for (int r = 0; r < rows; ++r) {
      const float* scores = s.scores + r * kTileTokens;
      s.tile_max[r] = scale_log2_ * (whole(r) == kTileSubBlocks
                                         ? row_peak(scores, kTileSubBlocks, kTileSubBlocks, visible(r), t)
                                         : row_peak(scores, whole(r), subs, visible(r), t));
    }
    for (int r = 0; r < rows; ++r) {
      const float* scores = s.scores + r * kTileTokens;
      T* weights = reinterpret_cast<T*>(s.weights) + r * kTileTokens;
      s.tile_sum[r] = whole(r) == kTileSubBlocks
                          ? row_weights(scores, weights, kTileSubBlocks, kTileSubBlocks, visible(r), t, s.tile_max[r])
                          : row_weights(scores, weights, whole(r), subs, visible(r), t, s.tile_max[r]);
    }
  }

  static WB_INLINE v16f masked(const AttentionTile& t, int sub, int visible, v16f x, float otherwise) {
    return lane_index() < std::min(visible - t.first_token[sub], t.capacity[sub]) ? x : splat(otherwise);
  }

  WB_INLINE float row_peak(const float* scores, int whole, int subs, int visible, const AttentionTile& t) const {
    v16f peaks = splat(kMinusInf);
#pragma GCC unroll 16
    for (int i = 0; i < whole; ++i) peaks = max16(peaks, load16(scores + i * kLanes));
    for (int i = whole; i < subs; ++i) peaks = max16(peaks, masked(t, i, visible, load16(scores + i * kLanes), kMinusInf));
    return reduce_max(peaks);
  }

  // Returns the sum of the row's weights. `max` is in units of the exponent of two.
  WB_INLINE float row_weights(const float* scores, T* weights, int whole, int subs, int visible, const AttentionTile& t,
                              float max) const {
    const v16f scale = splat(scale_log2_), shift = splat(-max);
    v16f sums = {};
#pragma GCC unroll 4
    for (int i = 0; i < whole; ++i) {
      const v16f w = exp2_16(fma16(load16(scores + i * kLanes), scale, shift));
      sums += w;
      store16(weights + i * kLanes, w);
    }
    for (int i = whole; i < subs; ++i) {
      const v16f w = masked(t, i, visible, exp2_16(fma16(load16(scores + i * kLanes), scale, shift)), 0.0f);
      sums += w;
      store16(weights + i * kLanes, w);
    }
    return reduce_add(sums);
  }

  // `upcoming`: the tile whose keys to fetch meanwhile, or null.
  void weigh(int rows, int subs, const AttentionTile& t, const AttentionTile* upcoming, const Scratch& s) const {
#if WB_AMX
    if (on_unit_)
      return matrix_values(s.weights, s.values, subs, g_.dim_padded,
                           {upcoming ? upcoming->keys : nullptr, g_.key_bytes}, s.tile_out);
#endif
    ValueArgs tile;
    tile.sub_blocks = subs;
    tile.stride = static_cast<size_t>(g_.dim_padded) * 4;
    for (int r = 0; r < rows; ++r) tile.weights[r] = s.weights + r * kTileTokens / kPerWord<T>;
    const int vecs = g_.dim_padded / kLanes;
    for (int vec = 0; vec < vecs; vec += kTileVecs) {
      for (int i = 0; i < subs; ++i) tile.values[i] = t.values[i] + vec * 64;
      const char* fetch[kTileSubBlocks];  // a head of many vectors has as many passes to fetch its keys in
      const int fetched = vec / kTileVecs * kFetchLines * kLanes / kPerWord<T> * 64;
      if (upcoming)
        for (int i = 0; i < subs; ++i) fetch[i] = upcoming->keys[i] + fetched;
      tile.fetch = upcoming ? fetch : nullptr;
      run_values<T>(tile, rows, std::min(kTileVecs, vecs - vec), s.tile_out + vec * kLanes, static_cast<size_t>(g_.dim_padded));
    }
  }

  KvGeometry g_;
  int heads_ = 0;
  int group_ = 1;
  int rows_ = 0;
  int tile_rows_ = kTileRows;
  int pass_rows_ = kTileRows;  // one or two row tiles: what shares each load of keys and values
  bool on_unit_ = false;
  float scale_log2_ = 1;  // scores to exponents of two
  size_t query_words_ = 0;
  size_t partial_floats_ = 0;
};

}  // namespace wb

#include "attention_pipeline.h"
