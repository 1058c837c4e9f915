// Where the keys and values of one attention tile are, and copies of values that can't be used as they lie.
#pragma once

#include <cstring>

#include "attention_plan.h"

namespace wb {

constexpr int kTileTokens = kTileSubBlocks * kLanes;

// The sub-blocks of one tile. Behind the `count` that exist: something to prefetch, and a capacity of nothing.
struct AttentionTile {
  int count;
  const char* keys[kTileSubBlocks];
  const char* values[kTileSubBlocks];
  int first_token[kTileSubBlocks];
  int capacity[kTileSubBlocks];
};

// How many tokens the unit's last row sees.
inline int visible_to(const AttentionUnit& unit, const AttentionBatch& batch) {
  return batch.seq_lens[unit.request] - (batch.query_start[unit.request + 1] - unit.first_row) + unit.tokens;
}

inline void locate(const KvGeometry& g, const AttentionUnit& unit, int tile, const AttentionBatch& batch, const char* layer,
                   AttentionTile& t) {
  const int first_sub = tile * kTileSubBlocks;
  const int32_t* table = batch.block_table + static_cast<size_t>(unit.request) * static_cast<size_t>(batch.max_blocks) +
                         first_sub / g.sub_blocks;
  t.count = std::min(kTileSubBlocks, g.touched(visible_to(unit, batch)) - first_sub);
  int sub = first_sub % g.sub_blocks, token = g.first_token(first_sub);
  for (int i = 0; i < t.count; ++i) {
    const int capacity = std::min(kLanes, g.block_size - sub * kLanes);
    t.keys[i] = layer + g.key_offset(*table, unit.kv_head, sub);
    t.values[i] = layer + g.value_offset(*table, unit.kv_head, sub);
    t.first_token[i] = token;
    t.capacity[i] = capacity;
    token += capacity;
    if (++sub == g.sub_blocks) sub = 0, ++table;
  }
  for (int i = t.count; i < kTileSubBlocks; ++i) {
    t.keys[i] = t.keys[t.count - 1], t.values[i] = t.values[t.count - 1];  // for prefetching only
    t.first_token[i] = token, t.capacity[i] = 0;
  }
}

// The values of one sub-block, zeros in the places of all tokens but the first `written`.
template <class T>
WB_INLINE void copy_written(const KvGeometry& g, const char* values, int written, char* copy) {
  constexpr int kPer = kPerWord<T>;
  const size_t word_row = static_cast<size_t>(g.dim_padded) * 4;
  const size_t kept = static_cast<size_t>(ceil_div(written, kPer)) * word_row;
  for (size_t i = 0; i < kept; i += 64) store(copy + i, load<v16u>(values + i));
  if (kept < g.value_bytes) std::memset(copy + kept, 0, g.value_bytes - kept);
  if (written % kPer) {  // bf16, odd: the upper half of the last pair is unwritten
    uint32_t* words = reinterpret_cast<uint32_t*>(copy + kept - word_row);
    for (int d = 0; d < g.dim_padded; ++d) words[d] &= 0xffffu;
  }
}

// Unwritten places may hold anything, NaN included, and zero times NaN is NaN: give such sub-blocks a clean copy.
template <class T>
void hide_unwritten(const KvGeometry& g, AttentionTile& t, int limit, char* copies) {
  for (int i = 0; i < t.count; ++i) {
    const int written = std::min(limit - t.first_token[i], t.capacity[i]);
    if (written >= kLanes) continue;
    char* copy = copies + static_cast<size_t>(i) * g.value_bytes;
    copy_written<T>(g, t.values[i], written, copy);
    t.values[i] = copy;
  }
}

// The same for the matrix unit, which wants two sub-blocks side by side: all of them, and zeros behind an odd one.
template <class T>
void gather_values(const KvGeometry& g, const AttentionTile& t, int limit, char* copies) {
  for (int i = 0; i < round_up(t.count, 2); ++i) {
    const int written = std::max(0, std::min(limit - t.first_token[i], t.capacity[i]));
    copy_written<T>(g, t.values[i], written, copies + static_cast<size_t>(i) * g.value_bytes);
  }
}

}  // namespace wb
