// Which units of work one attention call consists of.
#pragma once

#include <vector>

#include "amx.h"
#include "kv_cache.h"
#include "tile.h"

namespace wb {

constexpr int kTileSubBlocks = 16;  // of one attention tile
// Rows of a unit: more of them share what a tile costs once, but leave each thread fewer than `kPlannedUnits` units.
constexpr int kFewUnitRows = 8 * kTileRows;
constexpr int kUnitRows = kMatrixUnit<bf16> ? 32 * kTileRows : kFewUnitRows;
constexpr int kPlannedUnits = 8;

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
    const int rows_of_share = batch.query_start[batch.requests] * g.kv_heads / (kPlannedUnits * threads) * group;
    const int unit_tokens = std::max(1, std::min(kUnitRows, std::max(kFewUnitRows, rows_of_share)) / group);
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

}  // namespace wb
