// Attention's two products on the matrix unit (amx.h): one A tile of 16 rows against the sub-blocks of one tile, as in decode,
// or, in prefill, two A tiles that share each load of keys and values, with the softmax of other rows between the products.
//
// Every operand that is written here lies tile by tile, so that a tile register is 1 KiB in one piece: scores as
// [A tile][sub-block][16 rows][16 tokens], weights as [A tile][pair of sub-blocks][16 rows][16 words]. Weights are as deep as
// the unit is with the tokens of two sub-blocks; the values of these, which the cache may hold in two blocks, are copied side
// by side (`gather_values`), once for all rows that attend to them.
#pragma once

#include "amx.h"
#include "attention_plan.h"

namespace wb {

constexpr int kPassRows = 2 * kUnitHeight;  // rows that share each load of keys or values
constexpr int kUnitColumns = 2 * kLanes;  // columns of two B tiles
constexpr int kUnitTile = kUnitHeight * kUnitWords;  // words of a whole tile register

// Heads whose keys are whole and half B tiles.
template <class T>
constexpr bool on_matrix_unit(int dim_words) { return kMatrixUnit<T> && dim_words % (kUnitWords / 2) == 0; }

// Of these, heads whose keys are whole B tiles: two A tiles at once.
constexpr bool in_pairs(int dim_words) { return dim_words % kUnitWords == 0; }

#if WB_AMX

// All tiles are whole, but for heads whose keys end in a half: 6 and 7 are then 8 words of A and of B.
inline TileShapes attention_shapes(int dim_words) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) shapes.set(tile, kUnitHeight, kUnitWords);
  if (in_pairs(dim_words)) return shapes;
  shapes.set(6, kUnitHeight, kUnitWords / 2);
  shapes.set(7, kUnitWords / 2, kUnitWords);
  return shapes;
}

WB_INLINE void prefetch_lines(const char* from, size_t bytes) {
#pragma GCC unroll 8
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i);
}

// One product of A (tile `a`) with up to four B operands (tile `b`), `count` of them, `at(i)` apart in memory.
#define WB_UNIT_STEP(a, b, count, at, stride)  \
  do {                                         \
    WB_TILE_LOAD(b, (at)(0), stride);          \
    WB_TILE_DOT(0, a, b);                      \
    if ((count) > 1) {                         \
      WB_TILE_LOAD(b, (at)(1), stride);        \
      WB_TILE_DOT(1, a, b);                    \
    }                                          \
    if ((count) > 2) {                         \
      WB_TILE_LOAD(b, (at)(2), stride);        \
      WB_TILE_DOT(2, a, b);                    \
    }                                          \
    if ((count) > 3) {                         \
      WB_TILE_LOAD(b, (at)(3), stride);        \
      WB_TILE_DOT(3, a, b);                    \
    }                                          \
  } while (false)

// Two A operands with two B operands: tiles 0 and 1 sum the first's products, 2 and 3 the second's.
#define WB_UNIT_PAIR_STEP(a0, a1, a_stride, b0, b1, b_stride) \
  do {                                                        \
    WB_TILE_LOAD(6, b0, b_stride);                            \
    WB_TILE_LOAD(4, a0, a_stride);                            \
    WB_TILE_DOT(0, 4, 6);                                     \
    WB_TILE_LOAD(5, a1, a_stride);                            \
    WB_TILE_DOT(2, 5, 6);                                     \
    WB_TILE_LOAD(7, b1, b_stride);                            \
    WB_TILE_DOT(1, 4, 7);                                     \
    WB_TILE_DOT(3, 5, 7);                                     \
  } while (false)

WB_INLINE void zero_sums() {
  WB_TILE_ZERO(0);
  WB_TILE_ZERO(1);
  WB_TILE_ZERO(2);
  WB_TILE_ZERO(3);
}

// Memory to prefetch for each sub-block meanwhile: `bytes` at each of `lines`, or null.
struct Prefetch {
  const char* const* lines;
  size_t bytes;
  WB_INLINE void operator()(int sub) const {
    if (lines) prefetch_lines(lines[sub], bytes);
  }
};

// Four neighbouring sums, or fewer, `apart` floats from each other; their rows are `stride` bytes apart.
WB_INLINE void store_sums(int count, float* out, int apart, size_t stride) {
  WB_TILE_STORE(0, out, stride);
  if (count > 1) WB_TILE_STORE(1, out + apart, stride);
  if (count > 2) WB_TILE_STORE(2, out + 2 * apart, stride);
  if (count > 3) WB_TILE_STORE(3, out + 3 * apart, stride);
}

// Scores of one A tile of `query` ([16][words]) against the keys of `subs` sub-blocks.
__attribute__((noinline)) inline void matrix_scores(const uint32_t* query, int words, const char* const* keys, int subs,
                                                    Prefetch fetch, float* scores) {
  const size_t row_bytes = static_cast<size_t>(words) * 4;
  const int whole = words / kUnitWords;
  for (int sub = 0; sub < subs; sub += 4) {
    const int count = std::min(4, subs - sub);
    for (int i = 0; i < count; ++i) fetch(sub + i);
    zero_sums();
    for (int w = 0; w < whole; ++w) {
      const auto key = [&](int i) { return keys[sub + i] + w * 1024; };
      WB_TILE_LOAD(4, query + w * kUnitWords, row_bytes);
      WB_UNIT_STEP(4, 5, count, key, 64);
    }
    if (words % kUnitWords) {
      const auto key = [&](int i) { return keys[sub + i] + whole * 1024; };
      WB_TILE_LOAD(6, query + whole * kUnitWords, row_bytes);
      WB_UNIT_STEP(6, 7, count, key, 64);
    }
    store_sums(count, scores + sub * kUnitTile, kUnitTile, 64);
  }
}

// out[16][dims]: weights of `subs` sub-blocks times `values` ([words of tokens][dims]); an odd one has a pair of zeros.
__attribute__((noinline)) inline void matrix_values(const uint32_t* weights, const char* values, int subs, int dims, Prefetch fetch,
                                                    float* out) {
  const size_t stride = static_cast<size_t>(dims) * 4;
  for (int dim = 0; dim < dims; dim += 4 * kLanes) {
    const int count = std::min(4, (dims - dim) / kLanes);
    zero_sums();
    for (int pair = 0; pair < ceil_div(subs, 2); ++pair) {
      if (dim == 0) fetch(2 * pair), fetch(2 * pair + 1);
      const char* from = values + static_cast<size_t>(pair) * kUnitWords * stride + dim * 4;
      const auto value = [&](int i) { return from + i * 64; };
      WB_TILE_LOAD(4, weights + pair * kUnitTile, 64);
      WB_UNIT_STEP(4, 5, count, value, stride);
    }
    store_sums(count, out + dim, kLanes, stride);
  }
}

// The operands of one pass of 32 rows.
struct PassScores {
  const uint32_t* query;
  const char* const* keys;
  int subs;
  Prefetch fetch;
  float* scores;
};
struct PassValues {
  const uint32_t* weights;
  const char* values;
  int subs;
  Prefetch fetch;
  float* out;
};

// What `matrix_scores` does for one pass and `matrix_values` for another, either of which may be null, while the vector unit
// turns the scores of a third into weights: `row(r)` for all r below `rows`, spread evenly between the products. A load of a tile
// takes the unit nearly as long as a product: two A tiles share each B tile, and queries of 64 dimensions stay where they are.
template <class Row>
WB_INLINE void matrix_pass(int words, int dims, const PassScores* to_score, const PassValues* to_weigh, int rows, Row&& row) {
  const size_t row_bytes = static_cast<size_t>(words) * 4, stride = static_cast<size_t>(dims) * 4;
  const int whole = words / kUnitWords, pairs = to_weigh ? ceil_div(to_weigh->subs, 2) : 0;
  const int steps = (to_score ? ceil_div(to_score->subs, 2) * whole : 0) + pairs * (dims / kUnitColumns);
  int done = 0, next = 0;
  const auto advance = [&] {
    for (++done; next * steps < done * rows; ++next) row(next);
  };
  if (to_score && whole == 2) {  // 64 dimensions: sums in 0 and 1, queries in 2 to 5
    const uint32_t *high = to_score->query, *low = high + kUnitHeight * words;
    WB_TILE_LOAD(2, high, row_bytes);
    WB_TILE_LOAD(3, low, row_bytes);
    WB_TILE_LOAD(4, high + kUnitWords, row_bytes);
    WB_TILE_LOAD(5, low + kUnitWords, row_bytes);
    for (int sub = 0; sub < round_up(to_score->subs, 2); ++sub) {
      const int there = std::min(sub, to_score->subs - 1);
      to_score->fetch(there);
      const char* key = to_score->keys[there];
      float* out = to_score->scores + sub * kUnitTile;
      WB_TILE_LOAD(6, key, 64);
      WB_TILE_ZERO(0);
      WB_TILE_DOT(0, 2, 6);
      WB_TILE_ZERO(1);
      WB_TILE_DOT(1, 3, 6);
      WB_TILE_LOAD(7, key + 1024, 64);
      WB_TILE_DOT(0, 4, 7);
      WB_TILE_DOT(1, 5, 7);
      WB_TILE_STORE(0, out, 64);
      WB_TILE_STORE(1, out + kTileSubBlocks * kUnitTile, 64);
      advance();
    }
  } else if (to_score) {
    const uint32_t *high = to_score->query, *low = high + kUnitHeight * words;
    for (int sub = 0; sub < to_score->subs; sub += 2) {
      const int other = std::min(sub + 1, to_score->subs - 1);  // an odd one twice
      to_score->fetch(sub);
      to_score->fetch(other);
      const char *key = to_score->keys[sub], *other_key = to_score->keys[other];
      zero_sums();
      for (int w = 0; w < whole; ++w) {
        WB_UNIT_PAIR_STEP(high + w * kUnitWords, low + w * kUnitWords, row_bytes, key + w * 1024, other_key + w * 1024, 64);
        if (w + 1 < whole) advance();
      }
      float *out = to_score->scores + sub * kUnitTile, *low_out = out + kTileSubBlocks * kUnitTile;
      WB_TILE_STORE(0, out, 64);
      WB_TILE_STORE(1, out + kUnitTile, 64);
      WB_TILE_STORE(2, low_out, 64);
      WB_TILE_STORE(3, low_out + kUnitTile, 64);
      advance();
    }
  }
  for (int dim = 0; to_weigh && dim < dims; dim += kUnitColumns) {
    const uint32_t *high = to_weigh->weights, *low = high + kTileSubBlocks / 2 * kUnitTile;
    zero_sums();
    for (int pair = 0; pair < pairs; ++pair) {
      if (dim == 0) to_weigh->fetch(2 * pair), to_weigh->fetch(2 * pair + 1);
      const char* value = to_weigh->values + static_cast<size_t>(pair) * kUnitWords * stride + dim * 4;
      WB_UNIT_PAIR_STEP(high + pair * kUnitTile, low + pair * kUnitTile, 64, value, value + 64, stride);
      if (pair + 1 < pairs) advance();
    }
    float *out = to_weigh->out + dim, *low_out = out + kUnitHeight * dims;
    WB_TILE_STORE(0, out, stride);
    WB_TILE_STORE(1, out + kLanes, stride);
    WB_TILE_STORE(2, low_out, stride);
    WB_TILE_STORE(3, low_out + kLanes, stride);
    advance();
  }
  for (; next < rows; ++next) row(next);
}

#endif

}  // namespace wb
