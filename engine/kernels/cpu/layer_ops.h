// The small operations between matrix products. Everything is computed in fp32; T is what the next product reads.
#pragma once

#include <cmath>

#include "kv_cache.h"
#include "simd.h"

namespace wb {

template <class T>
WB_INLINE void embed_row(const T* table, int64_t id, int hidden, float* out) {
  const T* row = table + static_cast<size_t>(id) * static_cast<size_t>(hidden);
  int i = 0;
  for (; i + kLanes <= hidden; i += kLanes) store16(out + i, load16(row + i));
  for (; i < hidden; ++i) out[i] = to_float(row[i]);
}

// 1 / sqrt(mean(x^2) + eps)
WB_INLINE float inverse_rms(const float* x, int n, float eps) {
  v16f squares = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const v16f v = load16(x + i);
    squares = fma16(v, v, squares);
  }
  float sum = reduce_add(squares);
  for (; i < n; ++i) sum += x[i] * x[i];
  return 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
}

template <class T>
WB_INLINE void rms_norm(const float* x, const float* weight, int n, float eps, T* out) {
  const float inverse = inverse_rms(x, n, eps);
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) store16(out + i, load16(x + i) * inverse * load16(weight + i));
  for (; i < n; ++i) out[i] = from_float<T>(x[i] * inverse * weight[i]);
}

struct RopeTable {
  const float* cos;  // [positions, D / 2]
  const float* sin;
  int half;
};

// Normalise (when `norm` is given) and rotate one head, halves against each other (neox style), in place.
WB_INLINE void norm_and_rotate(float* x, const RopeTable& rope, int64_t position, const float* norm, float eps) {
  const int half = rope.half;
  if (norm) rms_norm<float>(x, norm, 2 * half, eps, x);
  const float* cos = rope.cos + static_cast<size_t>(position) * static_cast<size_t>(half);
  const float* sin = rope.sin + static_cast<size_t>(position) * static_cast<size_t>(half);
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const v16f c = load16(cos + i), s = load16(sin + i), a = load16(x + i), b = load16(x + half + i);
    store16(x + i, a * c - b * s);
    store16(x + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cos[i] - b * sin[i];
    x[half + i] = b * cos[i] + a * sin[i];
  }
}

// One row of the qkv product: rotate queries into `query` ([heads, dim_words] words), rotate keys and write both key and
// value into the cache. `part` counts query heads, then KV heads. The row is overwritten.
template <class T>
WB_INLINE void rope_and_store(float* row, int part, int heads, const KvGeometry& g, const RopeTable& rope, int64_t position,
                              int64_t slot, const float* q_norm, const float* k_norm, float eps, T* query, char* kv_layer) {
  const int d = g.head_dim;
  if (part < heads) {
    float* q = row + part * d;
    norm_and_rotate(q, rope, position, q_norm, eps);
    T* to = query + part * g.dim_words * kPerWord<T>;
    for (int i = 0; i < d; i += kLanes) {
      if (i + kLanes <= d) {
        store16(to + i, load16(q + i));
      } else {
        for (int j = i; j < d; ++j) to[j] = from_float<T>(q[j]);
      }
    }
    return;
  }
  const int head = part - heads;
  float* k = row + (heads + head) * d;
  norm_and_rotate(k, rope, position, k_norm, eps);
  write_kv<T>(g, kv_layer, slot, head, k, row + (heads + g.kv_heads + head) * d);
}

}  // namespace wb
