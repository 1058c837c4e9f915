// Single kernels behind handles, for tests and benchmarks: the same code that the model runs, one kernel at a time.
#pragma once

#include "model.h"

namespace wb {

struct LinearUnit {
  virtual ~LinearUnit() = default;
  virtual void run(const void* x, int m, void* out) = 0;
};

template <class T>
struct LinearUnitOf final : LinearUnit {
  Linear lin;
  Buffer rows, widened;
  Team team;

  explicit LinearUnitOf(int threads) : team(threads) {}

  // x is [m, k] of T; out is float [m, n], or T [m, n / 2] when gated.
  void run(const void* x, int m, void* out) override {
    team.settle();
    const int threads = team.threads();
    const size_t words = static_cast<size_t>(lin.words), k = static_cast<size_t>(lin.k);
    const size_t widened_bytes = lin.int8 ? words * kTileVecs * 64 : 0;
    rows.reserve(static_cast<size_t>(readable_rows<T>(m)) * words * 4);
    widened.reserve(widened_bytes * static_cast<size_t>(threads));
    for (size_t r = 0; r < static_cast<size_t>(m); ++r)
      std::copy_n(static_cast<const T*>(x) + r * k, k, reinterpret_cast<T*>(rows.as<uint32_t>() + r * words));
    Stage stage;
    team.run([&](int thread) {
      const MatrixUnitScope scope;
      char* own = widened.as<char>() + widened_bytes * static_cast<size_t>(thread);
      const auto x_rows = [&] { return rows.as<const uint32_t>(); };
      const size_t n = static_cast<size_t>(lin.n);
      if (lin.gated)
        run_linear<T>(lin, x_rows, words, m, threads, stage, own, GatedSilu<T>{static_cast<T*>(out), n / 2});
      else
        run_linear<T>(lin, x_rows, words, m, threads, stage, own, StoreFloat{static_cast<float*>(out), n});
    });
    team.settle();
  }
};

template <class T>
LinearUnit* make_linear(const void* weight, const void* bias, int n, int k, bool gated, bool int8, int threads) {
  auto unit = std::make_unique<LinearUnitOf<T>>(threads);
  unit->lin = pack_linear(static_cast<const T*>(weight), static_cast<const T*>(bias), n, k, gated, int8, unit->team);
  return unit.release();
}

struct AttentionUnitBase {
  virtual ~AttentionUnitBase() = default;
  virtual void fill(float value) = 0;
  virtual void write(int layer, int tokens, const int64_t* slots, const float* keys, const float* values) = 0;
  virtual void run(int first_layer, int layers, const AttentionBatch& batch, const void* query, void* out) = 0;
};

template <class T>
class AttentionUnitOf final : public AttentionUnitBase {
 public:
  AttentionUnitOf(int heads, int kv_heads, int head_dim, int block_size, int layers, int blocks, int threads)
      : g_(block_size, kv_heads, head_dim, kPerWord<T>),
        attention_(g_, heads, 1.0f / std::sqrt(static_cast<float>(head_dim))),
        heads_(heads),
        layer_bytes_(g_.block_bytes * static_cast<size_t>(blocks)),
        bytes_(layer_bytes_ * static_cast<size_t>(layers)),
        cache_(bytes_),
        team_(threads) {
    scratch_bytes_ = (attention_.scratch_bytes() + 4095) / 4096 * 4096;
    scratch_ = Buffer(scratch_bytes_ * static_cast<size_t>(threads));
  }

  void fill(float value) override { std::fill_n(cache_.as<T>(), bytes_ / sizeof(T), from_float<T>(value)); }

  void write(int layer, int tokens, const int64_t* slots, const float* keys, const float* values) override {
    char* base = cache_.as<char>() + layer_bytes_ * static_cast<size_t>(layer);
    for (int t = 0; t < tokens; ++t)
      for (int head = 0; head < g_.kv_heads; ++head) {
        const size_t at = static_cast<size_t>((t * g_.kv_heads + head) * g_.head_dim);
        write_kv<T>(g_, base, slots[t], head, keys + at, values + at);
      }
  }

  // All layers in one job, as in a forward. query: T [tokens, heads, D]; out: T [tokens, heads * D].
  void run(int first_layer, int layers, const AttentionBatch& batch, const void* query, void* out) override {
    plan_.build(batch, g_, attention_.group(), team_.threads());
    partials_.reserve(attention_.partial_bytes(plan_));
    std::vector<Stage> stages(static_cast<size_t>(2 * layers));
    const size_t stride = static_cast<size_t>(heads_ * g_.head_dim);
    team_.run([&](int thread) {
      const MatrixUnitScope scope;
      char* own = scratch_.as<char>() + scratch_bytes_ * static_cast<size_t>(thread);
      Stage* stage = stages.data();
      for (int l = first_layer; l < first_layer + layers; ++l) {
        const char* base = cache_.as<char>() + layer_bytes_ * static_cast<size_t>(l);
        attention_.run(plan_, batch, base, static_cast<const uint32_t*>(query), static_cast<T*>(out), stride,
                       partials_.template as<float>(), own, team_.threads(), *stage++);
        if (!plan_.splits.empty())
          attention_.merge_split(plan_, static_cast<T*>(out), stride, partials_.template as<float>(), own, *stage++);
      }
    });
    team_.settle();
  }

 private:
  KvGeometry g_;
  PagedAttention<T> attention_;
  AttentionPlan plan_;
  int heads_;
  size_t layer_bytes_, bytes_, scratch_bytes_ = 0;
  Buffer cache_, scratch_, partials_;
  Team team_;
};

}  // namespace wb
