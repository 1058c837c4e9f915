// The paged KV cache. A block holds, for each KV head, its keys and then its values, in sub-blocks of 16 tokens (a block
// size that is no multiple of 16 leaves the last sub-block partly unused). Both are stored as the matrix tile wants its
// column operand, so that neither scores nor outputs ever need a sum across lanes:
//   keys   [word of D][16 tokens]        one vector = the same word of 16 tokens
//   values [word of tokens][D padded]    one vector = 16 dimensions of one token (fp32) or of a pair of tokens (bf16)
#pragma once

#include <algorithm>

#include "buffer.h"
#include "simd.h"

namespace wb {

struct KvGeometry {
  int block_size = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int dim_words = 0;
  int dim_padded = 0;
  int sub_blocks = 0;  // per block
  int per_word = 1;
  size_t key_bytes = 0;  // of one sub-block
  size_t value_bytes = 0;
  size_t head_bytes = 0;
  size_t block_bytes = 0;

  KvGeometry() = default;
  KvGeometry(int block_size_, int kv_heads_, int head_dim_, int per_word_)
      : block_size(block_size_), kv_heads(kv_heads_), head_dim(head_dim_), per_word(per_word_) {
    dim_words = ceil_div(head_dim, per_word);
    dim_padded = round_up(head_dim, kLanes);
    sub_blocks = ceil_div(block_size, kLanes);
    key_bytes = static_cast<size_t>(dim_words) * 64;
    value_bytes = static_cast<size_t>(kLanes / per_word * dim_padded) * 4;
    head_bytes = static_cast<size_t>(sub_blocks) * (key_bytes + value_bytes);
    block_bytes = static_cast<size_t>(kv_heads) * head_bytes;
  }

  size_t key_offset(int block, int head, int sub) const {
    return static_cast<size_t>(block) * block_bytes + static_cast<size_t>(head) * head_bytes +
           static_cast<size_t>(sub) * key_bytes;
  }
  size_t value_offset(int block, int head, int sub) const {
    return key_offset(block, head, 0) + static_cast<size_t>(sub_blocks) * key_bytes + static_cast<size_t>(sub) * value_bytes;
  }

  // Sub-blocks are numbered through a sequence: which token a sub-block starts at, how many it may hold, how many a
  // context of `tokens` touches.
  int first_token(int sub) const { return sub / sub_blocks * block_size + sub % sub_blocks * kLanes; }
  int capacity(int sub) const { return std::min(kLanes, block_size - sub % sub_blocks * kLanes); }
  int touched(int tokens) const { return tokens / block_size * sub_blocks + ceil_div(tokens % block_size, kLanes); }
};

// Write one token's key and value of one head (fp32, already rotated) into its slot. Two tokens of a bf16 pair may be written by
// two threads at once: each writes its own half only.
template <class T>
WB_INLINE void write_kv(const KvGeometry& g, char* layer, int64_t slot, int head, const float* key, const float* value) {
  const int block = static_cast<int>(slot / g.block_size), offset = static_cast<int>(slot % g.block_size);
  const int sub = offset / kLanes, lane = offset % kLanes;
  constexpr int kPer = kPerWord<T>;
  T* k = reinterpret_cast<T*>(layer + g.key_offset(block, head, sub)) + lane * kPer;
  T* v = reinterpret_cast<T*>(layer + g.value_offset(block, head, sub)) + lane / kPer * g.dim_padded * kPer + lane % kPer;
  int d = 0;
  for (; d + kLanes <= g.head_dim; d += kLanes) {
    T lanes[kLanes];
    store16(lanes, load16(key + d));
    for (int i = 0; i < kLanes; i += kPer) std::memcpy(k + (d + i) * kLanes, lanes + i, sizeof(T) * kPer);
    store_spread(v + d * kPer, load16(value + d));
  }
  for (; d < g.head_dim; ++d) {
    k[d / kPer * kLanes * kPer + d % kPer] = from_float<T>(key[d]);
    v[d * kPer] = from_float<T>(value[d]);
  }
}

}  // namespace wb
