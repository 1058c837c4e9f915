// Paged attention for decode and for prefill chunks, in one kernel.
//
// A unit of work is some consecutive tokens of one request and one KV head: all query heads that share it are rows of the
// same tile, so keys and values are read once for the group. The context is walked in tiles of 16 sub-blocks counted from
// its start (FlashAttention's tiling): scores, maximum, exponentials, weighted values, then a merge with what came before
// (online softmax). Tile limits depend on nothing but the position in the sequence, and tiles are merged in order, so a
// row's result is the same bits alone, batched, or in another chunk. That also lets a long context be split over threads:
// tiles are then kept as partial results and merged, in the same order, by `merge_split`.
#pragma once

#include <vector>

#include "kv_cache.h"
#include "team.h"
#include "value_tile.h"

namespace wb {

constexpr int kTileTokens = kTileSubBlocks * kLanes;
constexpr int kUnitRows = 8 * kTileRows;
constexpr float kMinusInf = -__builtin_inff();

struct AttentionBatch {
  const int32_t* query_start;  // [requests + 1]
  const int32_t* seq_lens;  // [requests]
  const int32_t* block_table;  // [requests, max_blocks]
  int requests;
  int max_blocks;
};

struct AttentionUnit {
  int request;
  int first_row;  // packed token index
  int tokens;
  int kv_head;
  int tile_begin;
  int tile_end;
  int partial;  // first partial tile, or -1: the unit covers its whole context
  int64_t cost;
};

struct SplitRow {
  int row;
  int kv_head;
  int partial;
  int tiles;
};

// The work of one attention call: the same for every layer, so it is planned once per forward.
struct AttentionPlan {
  std::vector<AttentionUnit> units;  // dearest first
  std::vector<SplitRow> splits;
  int partials = 0;

  void build(const AttentionBatch& batch, const KvGeometry& g, int group, int threads) {
    units.clear();
    splits.clear();
    partials = 0;
    int64_t total = 0;
    for (int i = 0; i < batch.requests; ++i) total += ceil_div(g.touched(batch.seq_lens[i]), kTileSubBlocks);
    // A single-token unit longer than this would keep one thread busy after the others have finished.
    const int longest = static_cast<int>(std::max<int64_t>(2, total * g.kv_heads / (4 * threads)));
    const int unit_tokens = std::max(1, kUnitRows / group);
    for (int i = 0; i < batch.requests; ++i) {
      const int begin = batch.query_start[i], end = batch.query_start[i + 1], context = batch.seq_lens[i];
      for (int row = begin; row < end; row += unit_tokens) {
        const int tokens = std::min(unit_tokens, end - row);
        const int tiles = ceil_div(g.touched(context - (end - row - tokens)), kTileSubBlocks);
        for (int head = 0; head < g.kv_heads; ++head) {
          if (end - begin > 1 || tiles <= longest) {
            units.push_back({i, row, tokens, head, 0, tiles, -1, static_cast<int64_t>(tiles) * (tokens + 2)});
            continue;
          }
          splits.push_back({row, head, partials, tiles});
          for (int tile = 0; tile < tiles; tile += longest) {
            const int tile_end = std::min(tiles, tile + longest);
            units.push_back({i, row, 1, head, tile, tile_end, partials + tile, static_cast<int64_t>(tile_end - tile) * 3});
          }
          partials += tiles;
        }
      }
    }
    std::stable_sort(units.begin(), units.end(), [](const auto& a, const auto& b) { return a.cost > b.cost; });
  }
};

template <class T>
class PagedAttention {
 public:
  PagedAttention() = default;
  PagedAttention(const KvGeometry& geometry, int heads, float scale)
      : g_(geometry), heads_(heads), group_(heads / geometry.kv_heads), scale_(scale) {
    rows_ = std::max(kUnitRows, group_);
    query_words_ = static_cast<size_t>(g_.dim_words);
    partial_floats_ = static_cast<size_t>(group_) * static_cast<size_t>(g_.dim_padded + 2);
  }

  int group() const { return group_; }
  size_t scratch_bytes() const {
    const size_t rows = static_cast<size_t>(rows_);
    return rows * kTileTokens * 4 * 2 + rows * static_cast<size_t>(g_.dim_padded) * 4 * 2 + rows * 4 * 4 +
           kTileSubBlocks * g_.value_bytes + 4096;
  }
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
        merge_tile(scratch, p, p + group_, p + 2 * group_, group_);
      }
      write_rows(scratch, out, out_stride, split.row, split.kv_head, group_);
    });
  }

 private:
  struct Scratch {
    float* scores;  // [rows, kTileTokens]
    uint32_t* weights;  // [rows, kTileTokens / per word]
    float* tile_out;  // [rows, dim_padded]
    float* out;  // [rows, dim_padded]
    float* tile_max;  // [rows]
    float* tile_sum;
    float* max;
    float* sum;
    char* values;  // sub-blocks with unwritten tokens, copied with zeros in their place
  };

  // The sub-blocks of one tile.
  struct Tile {
    int count;
    const char* keys[kTileSubBlocks];
    const char* values[kTileSubBlocks];
    int first_token[kTileSubBlocks];
    int capacity[kTileSubBlocks];
  };

  Scratch carve(char* memory) const {
    Scratch s;
    const size_t rows = static_cast<size_t>(rows_), dims = static_cast<size_t>(g_.dim_padded);
    const auto take = [&](size_t bytes) {
      char* p = memory;
      memory += (bytes + 63) / 64 * 64;
      return p;
    };
    s.scores = reinterpret_cast<float*>(take(rows * kTileTokens * 4));
    s.weights = reinterpret_cast<uint32_t*>(take(rows * kTileTokens * 4));
    s.tile_out = reinterpret_cast<float*>(take(rows * dims * 4));
    s.out = reinterpret_cast<float*>(take(rows * dims * 4));
    for (float** p : {&s.tile_max, &s.tile_sum, &s.max, &s.sum}) *p = reinterpret_cast<float*>(take(rows * 4));
    s.values = take(kTileSubBlocks * g_.value_bytes);
    return s;
  }

  void start_rows(const Scratch& s, int rows) const {
    std::fill_n(s.max, rows, kMinusInf);
    std::fill_n(s.sum, rows, 0.0f);
    std::memset(s.out, 0, static_cast<size_t>(rows * g_.dim_padded) * 4);
  }

  void merge_tile(const Scratch& s, const float* tile_max, const float* tile_sum, const float* tile_out, int rows) const {
    for (int r = 0; r < rows; ++r) {
      if (tile_sum[r] == 0.0f) continue;  // no token of this tile is visible to the row
      const float peak = std::max(s.max[r], tile_max[r]);
      const float old_scale = s.sum[r] == 0.0f ? 0.0f : s.max[r] == peak ? 1.0f : exp1(s.max[r] - peak);
      const float new_scale = tile_max[r] == peak ? 1.0f : exp1(tile_max[r] - peak);
      s.sum[r] = s.sum[r] * old_scale + tile_sum[r] * new_scale;
      s.max[r] = peak;
      float* out = s.out + r * g_.dim_padded;
      const float* add = tile_out + r * g_.dim_padded;
      for (int d = 0; d < g_.dim_padded; d += kLanes)
        store16(out + d, fma16(load16(add + d), splat(new_scale), load16(out + d) * old_scale));
    }
  }

  void write_rows(const Scratch& s, T* out, size_t stride, int first_row, int kv_head, int rows) const {
    for (int r = 0; r < rows; ++r) {
      T* to = out + static_cast<size_t>(first_row + r / group_) * stride +
              static_cast<size_t>((kv_head * group_ + r % group_) * g_.head_dim);
      const float inverse = 1.0f / s.sum[r];
      for (int d = 0; d < g_.head_dim; d += kLanes)
        store_partial(to + d, load16(s.out + r * g_.dim_padded + d) * inverse, g_.head_dim - d);
    }
  }

  static const int32_t* table_of(const AttentionBatch& batch, int request) {
    return batch.block_table + static_cast<size_t>(request) * static_cast<size_t>(batch.max_blocks);
  }

  // How many tokens the unit's last row sees.
  static int visible_to(const AttentionUnit& unit, const AttentionBatch& batch) {
    return batch.seq_lens[unit.request] - (batch.query_start[unit.request + 1] - unit.first_row) + unit.tokens;
  }

  void locate(const AttentionUnit& unit, int tile, const AttentionBatch& batch, const char* layer, Tile& t) const {
    const int first_sub = tile * kTileSubBlocks;
    const int32_t* table = table_of(batch, unit.request) + first_sub / g_.sub_blocks;
    t.count = std::min(kTileSubBlocks, g_.touched(visible_to(unit, batch)) - first_sub);
    int sub = first_sub % g_.sub_blocks, token = g_.first_token(first_sub);
    for (int i = 0; i < t.count; ++i) {
      const int capacity = std::min(kLanes, g_.block_size - sub * kLanes);
      t.keys[i] = layer + g_.key_offset(*table, unit.kv_head, sub);
      t.values[i] = layer + g_.value_offset(*table, unit.kv_head, sub);
      t.first_token[i] = token;
      t.capacity[i] = capacity;
      token += capacity;
      if (++sub == g_.sub_blocks) sub = 0, ++table;
    }
    for (int i = t.count; i < kTileSubBlocks; ++i) t.keys[i] = t.keys[t.count - 1];  // for prefetching only
  }

  void attend(const AttentionUnit& unit, const AttentionUnit& next, const AttentionBatch& batch, const char* layer,
              const uint32_t* query, T* out, size_t out_stride, float* partials, const Scratch& s) const {
    const int rows = unit.tokens * group_;
    const int limit = visible_to(unit, batch), first_position = limit - unit.tokens;
    const uint32_t* q = query + (static_cast<size_t>(unit.first_row) * static_cast<size_t>(heads_) +
                                 static_cast<size_t>(unit.kv_head * group_)) * query_words_;
    Tile tiles[2];
    locate(unit, unit.tile_begin, batch, layer, tiles[0]);
    if (unit.partial < 0) start_rows(s, rows);
    for (int tile = unit.tile_begin; tile < unit.tile_end; ++tile) {
      Tile &t = tiles[(tile - unit.tile_begin) & 1], &following = tiles[(tile - unit.tile_begin + 1) & 1];
      if (tile + 1 < unit.tile_end)
        locate(unit, tile + 1, batch, layer, following);
      else
        locate(next, next.tile_begin, batch, layer, following);
      score(q, rows, t, s);
      softmax(t, first_position, rows, s);
      hide_unwritten(t, limit, s);
      float *tile_max = s.tile_max, *tile_sum = s.tile_sum, *tile_out = s.tile_out;
      if (unit.partial >= 0) {
        float* p = partials + static_cast<size_t>(unit.partial + tile - unit.tile_begin) * partial_floats_;
        std::copy_n(s.tile_max, rows, p);
        std::copy_n(s.tile_sum, rows, p + group_);
        tile_out = p + 2 * group_;
      }
      weigh(t, following, rows, tile_out, s);
      if (unit.partial < 0) merge_tile(s, tile_max, tile_sum, tile_out, rows);
    }
    if (unit.partial < 0) write_rows(s, out, out_stride, unit.first_row, unit.kv_head, rows);
  }

  const uint32_t* query_row(const uint32_t* q, int r) const {
    return q + static_cast<size_t>(r / group_ * heads_ + r % group_) * query_words_;
  }

  // The first rows to read the keys also fetch the values that go with them.
  void score(const uint32_t* q, int rows, const Tile& t, const Scratch& s) const {
    TileArgs tile;
    tile.words = g_.dim_words;
    tile.stride = 64;
    v16f result[kTileRows][kTileVecs];
    for (int sub = 0; sub < t.count; sub += kTileVecs) {
      const int vecs = std::min(kTileVecs, t.count - sub);
      std::copy_n(t.keys + sub, vecs, tile.column);
      for (int v = 0; v < kTileVecs; ++v) tile.fetch[v] = t.values[sub + std::min(v, vecs - 1)];
      for (int row = 0; row < rows; row += kTileRows) {
        const int tile_rows = std::min(kTileRows, rows - row);
        for (int r = 0; r < tile_rows; ++r) tile.row[r] = query_row(q, row + r);
        run_tile<T, T>(tile, tile_rows, vecs, row == 0 ? Fetch::kLines4 : Fetch::kNone, result);
        for (int r = 0; r < tile_rows; ++r)
          for (int v = 0; v < vecs; ++v) store16(s.scores + (row + r) * kTileTokens + (sub + v) * kLanes, result[r][v]);
      }
    }
  }

  // Scores to weights exp(scale * (score - max)); tokens after the row's own position, and places that hold none, get zero.
  void softmax(const Tile& t, int first_position, int rows, const Scratch& s) const {
    for (int r = 0; r < rows; ++r) {
      const float* scores = s.scores + r * kTileTokens;
      T* weights = reinterpret_cast<T*>(s.weights) + r * kTileTokens;
      const int visible = first_position + r / group_ + 1;
      const auto valid = [&](int i) { return std::max(0, std::min(visible - t.first_token[i], t.capacity[i])); };
      v16f peaks = splat(kMinusInf);
      for (int i = 0; i < t.count; ++i) {
        const v16f x = load16(scores + i * kLanes);
        peaks = max16(peaks, lane_index() < valid(i) ? x : splat(kMinusInf));
      }
      const float peak = reduce_max(peaks);
      s.tile_max[r] = peak * scale_;
      v16f sums = {};
      for (int i = 0; i < t.count; ++i) {
        const v16f e = exp16((load16(scores + i * kLanes) - peak) * scale_);
        const v16f w = lane_index() < valid(i) ? e : v16f{};
        sums += w;
        store16(weights + i * kLanes, w);
      }
      s.tile_sum[r] = peak == kMinusInf ? 0.0f : reduce_add(sums);
    }
  }

  // Unwritten places may hold anything, NaN included, and zero times NaN is NaN: give such sub-blocks a clean copy.
  void hide_unwritten(Tile& t, int limit, const Scratch& s) const {
    constexpr int kPer = kPerWord<T>;
    for (int i = 0; i < t.count; ++i) {
      const int written = std::min(limit - t.first_token[i], t.capacity[i]);
      if (written >= kLanes) continue;
      char* copy = s.values + static_cast<size_t>(i) * g_.value_bytes;
      const size_t word_row = static_cast<size_t>(g_.dim_padded) * 4;
      const size_t kept = static_cast<size_t>(ceil_div(written, kPer));
      std::memcpy(copy, t.values[i], kept * word_row);
      std::memset(copy + kept * word_row, 0, g_.value_bytes - kept * word_row);
      if (written % kPer) {  // bf16, odd: the upper half of the last pair is unwritten
        uint32_t* words = reinterpret_cast<uint32_t*>(copy + (kept - 1) * word_row);
        for (int d = 0; d < g_.dim_padded; ++d) words[d] &= 0xffffu;
      }
      t.values[i] = copy;
    }
  }

  // The first rows to read the values also fetch the keys of the tile that follows.
  void weigh(const Tile& t, const Tile& following, int rows, float* tile_out, const Scratch& s) const {
    ValueArgs tile;
    tile.sub_blocks = t.count;
    tile.stride = static_cast<size_t>(g_.dim_padded) * 4;
    const int vecs = g_.dim_padded / kLanes;
    v16f result[kTileRows][kTileVecs];
    for (int row = 0; row < rows; row += kTileRows) {
      const int tile_rows = std::min(kTileRows, rows - row);
      for (int r = 0; r < tile_rows; ++r) tile.weights[r] = s.weights + (row + r) * kTileTokens / kPerWord<T>;
      for (int vec = 0; vec < vecs; vec += kTileVecs) {
        const int tile_vecs = std::min(kTileVecs, vecs - vec);
        for (int i = 0; i < t.count; ++i) tile.values[i] = t.values[i] + vec * 64;
        const char* fetch[kTileSubBlocks];  // a head of many vectors has as many passes to fetch its keys in
        const int fetched = vec / kTileVecs * kFetchLines * kLanes / kPerWord<T> * 64;
        for (int i = 0; i < t.count; ++i) fetch[i] = following.keys[i] + fetched;
        tile.fetch = row == 0 ? fetch : nullptr;
        run_values<T>(tile, tile_rows, tile_vecs, result);
        for (int r = 0; r < tile_rows; ++r)
          for (int v = 0; v < tile_vecs; ++v)
            store16(tile_out + (row + r) * g_.dim_padded + (vec + v) * kLanes, result[r][v]);
      }
    }
  }

  KvGeometry g_;
  int heads_ = 0;
  int group_ = 1;
  int rows_ = 0;
  float scale_ = 1;
  size_t query_words_ = 0;
  size_t partial_floats_ = 0;
};

}  // namespace wb
