// The C ABI that engine/kernels/cpu/library.py binds. No exception crosses it: functions return a wb::Status, or null.
#include "units.h"

namespace {

template <class F>
int guarded(F&& f) {
  try {
    return static_cast<int>(f());
  } catch (const std::bad_alloc&) {
    return static_cast<int>(wb::Status::kOutOfMemory);
  }
}

template <class F>
void* created(F&& f) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Instruction set chosen at build: 4 AVX-512 with the bf16 matrix unit, 3 AVX-512 with BF16, 2 AVX-512, 1 AVX2, 0 portable.
int wb_isa(void) {
#if WB_AMX
  return 4;
#elif WB_BF16_DOT
  return 3;
#elif defined(__AVX512F__)
  return 2;
#elif defined(__AVX2__)
  return 1;
#else
  return 0;
#endif
}

void* wb_model_create(const WbModelSpec* spec, const float* cos, const float* sin, const void* embed) {
  return created([&]() -> wb::ModelBase* {
    if (spec->bf16) return new wb::Model<wb::bf16>(*spec, cos, sin, static_cast<const wb::bf16*>(embed));
    return new wb::Model<float>(*spec, cos, sin, static_cast<const float*>(embed));
  });
}

void wb_model_free(void* model) { delete static_cast<wb::ModelBase*>(model); }

int wb_model_set_linear(void* model, int layer, int kind, const void* weight, const void* bias) {
  return guarded([&] {
    static_cast<wb::ModelBase*>(model)->set_linear(layer, static_cast<wb::LinearKind>(kind), weight, bias);
    return wb::Status::kOk;
  });
}

int wb_model_set_norm(void* model, int layer, int kind, const float* weight) {
  return guarded([&] {
    static_cast<wb::ModelBase*>(model)->set_norm(layer, static_cast<wb::NormKind>(kind), weight);
    return wb::Status::kOk;
  });
}

int64_t wb_model_kv_bytes_per_block(void* model) {
  return static_cast<int64_t>(static_cast<wb::ModelBase*>(model)->kv_bytes_per_block());
}

int wb_model_allocate_kv(void* model, int num_blocks) {
  return guarded([&] {
    static_cast<wb::ModelBase*>(model)->allocate_kv(num_blocks);
    return wb::Status::kOk;
  });
}

void wb_model_fill_kv(void* model, float value) { static_cast<wb::ModelBase*>(model)->fill_kv(value); }

int wb_model_forward(void* model, const WbBatch* batch) {
  return guarded([&] { return static_cast<wb::ModelBase*>(model)->forward(*batch); });
}

void wb_model_time_stages(void* model) { static_cast<wb::ModelBase*>(model)->time_stages(); }

int wb_model_stage_times(void* model, int capacity, int32_t* kinds, int64_t* ended, int64_t* waited) {
  return static_cast<wb::ModelBase*>(model)->stage_times(capacity, kinds, ended, waited);
}

// Single kernels: see units.h.

void* wb_linear_create(int bf16, const void* weight, const void* bias, int n, int k, int gated, int int8,
                       int threads) {
  return created([&] {
    return bf16 ? wb::make_linear<wb::bf16>(weight, bias, n, k, gated != 0, int8 != 0, threads)
                : wb::make_linear<float>(weight, bias, n, k, gated != 0, int8 != 0, threads);
  });
}

void wb_linear_free(void* unit) { delete static_cast<wb::LinearUnit*>(unit); }

int wb_linear_run(void* unit, const void* x, int m, void* out) {
  return guarded([&] {
    static_cast<wb::LinearUnit*>(unit)->run(x, m, out);
    return wb::Status::kOk;
  });
}

void* wb_attention_create(int bf16, int heads, int kv_heads, int head_dim, int block_size, int layers, int blocks,
                          int threads) {
  return created([&]() -> wb::AttentionUnitBase* {
    if (bf16) return new wb::AttentionUnitOf<wb::bf16>(heads, kv_heads, head_dim, block_size, layers, blocks, threads);
    return new wb::AttentionUnitOf<float>(heads, kv_heads, head_dim, block_size, layers, blocks, threads);
  });
}

void wb_attention_free(void* unit) { delete static_cast<wb::AttentionUnitBase*>(unit); }

void wb_attention_fill(void* unit, float value) { static_cast<wb::AttentionUnitBase*>(unit)->fill(value); }

void wb_attention_write(void* unit, int layer, int tokens, const int64_t* slots, const float* keys, const float* values) {
  static_cast<wb::AttentionUnitBase*>(unit)->write(layer, tokens, slots, keys, values);
}

int wb_attention_run(void* unit, int first_layer, int layers, int requests, int max_blocks, const int32_t* query_start,
                     const int32_t* seq_lens, const int32_t* block_table, const void* query, void* out) {
  return guarded([&] {
    static_cast<wb::AttentionUnitBase*>(unit)->run(first_layer, layers,
                                                   {query_start, seq_lens, block_table, requests, max_blocks}, query, out);
    return wb::Status::kOk;
  });
}

void wb_rms_norm(int bf16, const float* x, const float* weight, int rows, int n, float eps, void* out) {
  for (int r = 0; r < rows; ++r) {
    const size_t at = static_cast<size_t>(r) * static_cast<size_t>(n);
    if (bf16)
      wb::rms_norm(x + at, weight, n, eps, static_cast<wb::bf16*>(out) + at);
    else
      wb::rms_norm(x + at, weight, n, eps, static_cast<float*>(out) + at);
  }
}

// Rows [n, head_dim] in place, row i at positions[i].
void wb_rotate(float* x, int rows, int head_dim, const int64_t* positions, const float* cos, const float* sin,
               const float* norm, float eps) {
  const wb::RopeTable rope{cos, sin, head_dim / 2};
  for (int r = 0; r < rows; ++r)
    wb::norm_and_rotate(x + static_cast<size_t>(r) * static_cast<size_t>(head_dim), rope, positions[r], norm, eps);
}

}  // extern "C"
#pragma GCC visibility pop
