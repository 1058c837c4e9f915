// The C ABI that engine/kernels/cpu/library.py binds. No exception crosses it: functions return a wb::Status, or null.
#include "model.h"

namespace {

template <class F>
int guarded(F&& f) {
  try {
    return static_cast<int>(f());
  } catch (const std::bad_alloc&) {
    return static_cast<int>(wb::Status::kOutOfMemory);
  }
}

template <class T>
void linear_once(const void* weight, const void* bias, const void* x, int m, int n, int k, int gated, int int8, int threads,
                 void* out) {
  const wb::Linear lin = wb::pack_linear(static_cast<const T*>(weight), static_cast<const T*>(bias), n, k, gated != 0, int8 != 0);
  const size_t words = static_cast<size_t>(lin.words);
  wb::Buffer rows(static_cast<size_t>(m) * words * 4);
  for (int r = 0; r < m; ++r)
    std::copy_n(static_cast<const T*>(x) + static_cast<size_t>(r) * static_cast<size_t>(k), k,
                reinterpret_cast<T*>(rows.as<uint32_t>() + static_cast<size_t>(r) * words));
  const size_t widened_bytes = words * wb::kTileVecs * 64;
  wb::Buffer widened(widened_bytes * static_cast<size_t>(threads));
  wb::Stage stage;
#pragma omp parallel num_threads(threads)
  {
    char* own = widened.as<char>() + widened_bytes * static_cast<size_t>(omp_get_thread_num());
    const auto x_rows = [&] { return rows.as<uint32_t>(); };
    if (gated)
      wb::run_linear<T>(lin, x_rows, words, m, threads, stage, own,
                        wb::GatedSilu<T>{static_cast<T*>(out), static_cast<size_t>(n / 2)});
    else
      wb::run_linear<T>(lin, x_rows, words, m, threads, stage, own,
                        wb::StoreFloat{static_cast<float*>(out), static_cast<size_t>(n)});
  }
}

}  // namespace

extern "C" {

// Instruction set chosen at build: 3 AVX-512 with BF16, 2 AVX-512, 1 AVX2, 0 portable.
int wb_isa(void) {
#if WB_BF16_DOT
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
  try {
    if (spec->bf16) return static_cast<wb::ModelBase*>(new wb::Model<wb::bf16>(*spec, cos, sin, static_cast<const wb::bf16*>(embed)));
    return static_cast<wb::ModelBase*>(new wb::Model<float>(*spec, cos, sin, static_cast<const float*>(embed)));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
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

// One linear layer, packed and run once: for tests. out is float [m, n], or T [m, n / 2] when gated.
int wb_linear(int bf16, const void* weight, const void* bias, const void* x, int m, int n, int k, int gated, int int8,
              int threads, void* out) {
  return guarded([&] {
    (bf16 ? linear_once<wb::bf16> : linear_once<float>)(weight, bias, x, m, n, k, gated, int8, threads, out);
    return wb::Status::kOk;
  });
}

}  // extern "C"
