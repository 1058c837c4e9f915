// Attention's two products on the matrix unit (amx.h): 16 rows against the scattered sub-blocks of one tile.
#pragma once

#include "amx.h"
#include "kv_cache.h"

namespace wb {

// Heads whose keys are whole and half B tiles.
template <class T>
constexpr bool on_matrix_unit(int dim_words) { return kMatrixUnit<T> && dim_words % (kUnitWords / 2) == 0; }

#if WB_AMX

// Tiles 0 to 3: sums. 4 and 5: 16 words of A and B. 6 and 7: 8 words of A and B.
inline TileShapes attention_shapes() {
  TileShapes shapes;
  for (int tile = 0; tile < 6; ++tile) shapes.set(tile, kUnitHeight, kUnitWords);
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

WB_INLINE void zero_sums() {
  WB_TILE_ZERO(0);
  WB_TILE_ZERO(1);
  WB_TILE_ZERO(2);
  WB_TILE_ZERO(3);
}

// Four neighbouring sums, or fewer; rows of `out` are `stride` floats apart.
WB_INLINE void store_sums(int count, float* out, size_t stride) {
  WB_TILE_STORE(0, out, stride * 4);
  if (count > 1) WB_TILE_STORE(1, out + kLanes, stride * 4);
  if (count > 2) WB_TILE_STORE(2, out + 2 * kLanes, stride * 4);
  if (count > 3) WB_TILE_STORE(3, out + 3 * kLanes, stride * 4);
}

// scores[16][stride]: rows of `query` ([16][words]) against the keys of `subs` sub-blocks. `fetch`: of each, memory to prefetch
// meanwhile, or null.
__attribute__((noinline)) inline void matrix_scores(const uint32_t* query, int words, const char* const* keys, int subs,
                                                    const char* const* fetch, size_t fetch_bytes, float* scores,
                                                    size_t stride) {
  const size_t row_bytes = static_cast<size_t>(words) * 4;
  const int whole = words / kUnitWords;
  for (int sub = 0; sub < subs; sub += 4) {
    const int count = std::min(4, subs - sub);
    if (fetch)
      for (int i = 0; i < count; ++i) prefetch_lines(fetch[sub + i], fetch_bytes);
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
    store_sums(count, scores + sub * kLanes, stride);
  }
}

// out[16][dims]: weights ([16][weight_words]) of `subs` sub-blocks times their values ([8 words of tokens][dims]).
__attribute__((noinline)) inline void matrix_values(const uint32_t* weights, int weight_words, const char* const* values,
                                                    int subs, int dims, const char* const* fetch, size_t fetch_bytes,
                                                    float* out) {
  const size_t stride = static_cast<size_t>(dims);
  for (int dim = 0; dim < dims; dim += 4 * kLanes) {
    const int count = std::min(4, (dims - dim) / kLanes);
    zero_sums();
    for (int sub = 0; sub < subs; ++sub) {
      if (fetch && dim == 0) prefetch_lines(fetch[sub], fetch_bytes);
      const auto value = [&](int i) { return values[sub] + (dim + i * kLanes) * 4; };
      WB_TILE_LOAD(6, weights + sub * (kLanes / 2), static_cast<size_t>(weight_words) * 4);
      WB_UNIT_STEP(6, 7, count, value, stride * 4);
    }
    store_sums(count, out + dim, stride);
  }
}

#endif

}  // namespace wb
