// A whole forward in one call: stages shared by a team of threads, no allocation once the buffers have grown.
#pragma once

#include <memory>
#include <vector>

#include "attention.h"
#include "layer_ops.h"
#include "linear.h"
#include "populate.h"

extern "C" {

struct WbModelSpec {
  int32_t vocab_size, hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_size;
  int32_t block_size, max_model_len, int8, bf16, num_threads, max_num_tokens;
  float rms_norm_eps, attention_scale;
};

// engine.models.backend.ForwardBatch, by pointer.
struct WbBatch {
  const int64_t *input_ids, *positions;
  const int32_t *query_start_loc, *seq_lens, *block_table;
  const int64_t *slot_mapping, *logits_indices;
  int32_t num_tokens, num_requests, max_blocks, num_logits;
  float* logits;
};

}  // extern "C"

namespace wb {

enum class Status : int {
  kOk = 0,
  kOutOfMemory = 1,
  kToken = 2,
  kPosition = 3,
  kSlot = 4,
  kLength = 5,
  kBlock = 6,
  kLogitsIndex = 7,
  kNoCache = 8,
};

enum LinearKind { kQkv = 0, kO = 1, kGateUp = 2, kDown = 3, kLmHead = 4 };
enum StageKind { kEmbed, kNorm, kQkvStage, kRope, kAttention, kMerge, kKeepRows, kOStage, kGateUpStage, kDownStage, kHead };
enum NormKind { kInputNorm = 0, kPostNorm = 1, kQNorm = 2, kKNorm = 3, kFinalNorm = 4 };

// A thread's way through the stages of a forward.
struct StageWalk {
  Stage* at;
  Stage& next(StageKind kind) {
    at->kind.store(kind, std::memory_order_relaxed);
    return *at++;
  }
};

class ModelBase {
 public:
  virtual ~ModelBase() = default;
  virtual void set_linear(int layer, LinearKind kind, const void* weight, const void* bias) = 0;
  virtual void set_norm(int layer, NormKind kind, const float* weight) = 0;
  virtual void allocate_kv(int num_blocks) = 0;
  virtual void fill_kv(float value) = 0;
  virtual size_t kv_bytes_per_block() const = 0;
  virtual Status forward(const WbBatch& batch) = 0;
  // From now on keep the times of forwards' stages.
  virtual void time_stages() = 0;
  // Of each stage of the last forward: its kind, when it ended, how long threads waited for that. Returns how many there are.
  virtual int stage_times(int capacity, int32_t* kinds, int64_t* ended, int64_t* waited) = 0;
};

template <class T>
class Model final : public ModelBase {
 public:
  Model(const WbModelSpec& spec, const float* cos, const float* sin, const T* embed)
      : s_(spec),
        kv_(spec.block_size, spec.num_kv_heads, spec.head_size, kPerWord<T>),
        attention_(kv_, spec.num_heads, spec.attention_scale),
        embed_(embed),
        layers_(static_cast<size_t>(spec.num_layers)),
        stages_(static_cast<size_t>(spec.num_layers + 1) * kStages),
        team_(spec.num_threads) {
    const size_t half = static_cast<size_t>(spec.head_size / 2) * static_cast<size_t>(spec.max_model_len);
    rope_memory_ = Buffer(half * 2 * sizeof(float));
    std::copy_n(cos, half, rope_memory_.as<float>());
    std::copy_n(sin, half, rope_memory_.as<float>() + half);
    rope_ = {rope_memory_.as<float>(), rope_memory_.as<float>() + half, spec.head_size / 2};
    q_size_ = spec.num_heads * spec.head_size;
    qkv_size_ = q_size_ + 2 * spec.num_kv_heads * spec.head_size;
    hidden_words_ = words(spec.hidden_size);
    attended_words_ = words(q_size_);
    inner_words_ = words(spec.intermediate_size);
    query_words_ = static_cast<size_t>(spec.num_heads * kv_.dim_words);
    const int k_max = std::max({spec.hidden_size, q_size_, spec.intermediate_size});
    widened_bytes_ = spec.int8 ? words(k_max) * kTileVecs * 64 : 0;
    own_rows_bytes_ = (static_cast<size_t>(readable_rows<T>(kFewRows)) * hidden_words_ * 4 + 63) / 64 * 64;
    private_bytes_ = (own_rows_bytes_ + widened_bytes_ + attention_.scratch_bytes() + 4095) / 4096 * 4096;
    private_ = Buffer(private_bytes_ * static_cast<size_t>(spec.num_threads));
    reserve(spec.max_num_tokens);
    for (const Buffer* buffer : {&hidden_, &kept_hidden_, &normed_, &qkv_, &query_, &attended_, &kept_attended_, &inner_})
      buffer->populate();
  }

  void set_linear(int layer, LinearKind kind, const void* weight, const void* bias) override {
    const auto pack = [&](int n, int k, bool gated) {
      return pack_linear(static_cast<const T*>(weight), static_cast<const T*>(bias), n, k, gated, s_.int8 != 0, team_);
    };
    switch (kind) {
      case kQkv: layers_[static_cast<size_t>(layer)].qkv = pack(qkv_size_, s_.hidden_size, false); break;
      case kO: layers_[static_cast<size_t>(layer)].o = pack(s_.hidden_size, q_size_, false); break;
      case kGateUp: layers_[static_cast<size_t>(layer)].gate_up = pack(2 * s_.intermediate_size, s_.hidden_size, true); break;
      case kDown: layers_[static_cast<size_t>(layer)].down = pack(s_.hidden_size, s_.intermediate_size, false); break;
      case kLmHead: lm_head_ = pack(s_.vocab_size, s_.hidden_size, false); break;
    }
  }

  void set_norm(int layer, NormKind kind, const float* weight) override {
    const bool per_head = kind == kQNorm || kind == kKNorm;
    std::vector<float> copy(weight, weight + (per_head ? s_.head_size : s_.hidden_size));
    if (kind == kFinalNorm)
      final_norm_ = std::move(copy);
    else
      layers_[static_cast<size_t>(layer)].norms[kind] = std::move(copy);
  }

  size_t kv_bytes_per_block() const override { return kv_.block_bytes * layers_.size(); }

  void allocate_kv(int num_blocks) override {
    team_.settle();
    populator_.stop();
    num_blocks_ = num_blocks;
    const size_t layer_bytes = kv_.block_bytes * static_cast<size_t>(num_blocks);
    cache_ = Buffer(layer_bytes * layers_.size());
    populator_.start(cache_.as<char>(), layers_.size(), layer_bytes);
  }

  void fill_kv(float value) override {
    const size_t count = kv_bytes_per_block() * static_cast<size_t>(num_blocks_) / sizeof(T);
    std::fill_n(cache_.as<T>(), count, from_float<T>(value));
  }

  void time_stages() override { timed_ = true; }

  int stage_times(int capacity, int32_t* kinds, int64_t* ended, int64_t* waited) override {
    team_.settle();
    int used = 0;
    for (const Stage& stage : stages_) {
      if (!stage.ended_ns || used == capacity) break;
      kinds[used] = stage.kind;
      ended[used] = stage.ended_ns;
      waited[used++] = stage.waited_ns;
    }
    return used;
  }

  Status forward(const WbBatch& batch) override {
    const Status status = check(batch);
    if (status != Status::kOk) return status;
    team_.settle();
    batch_ = batch;
    reserve(batch.num_tokens);
    plan_.build(attention_batch(batch), kv_, attention_.group(), s_.num_threads);
    partials_.reserve(attention_.partial_bytes(plan_));
    for (Stage& stage : stages_) stage.reset(timed_);
    team_.run([this](int thread) { run(batch_, thread); });
    return Status::kOk;
  }

 private:
  static constexpr int kStages = 10;  // at most, per layer; one more layer's worth for the embedding and the head
  static constexpr int kFewRows = 8;  // up to here every thread normalises for itself: cheaper than a stage

  struct Layer {
    Linear qkv, o, gate_up, down;
    std::vector<float> norms[4];
    const float* norm(NormKind kind) const { return norms[kind].empty() ? nullptr : norms[kind].data(); }
  };

  static size_t words(int elements) { return static_cast<size_t>(row_words<T>(elements)); }
  static AttentionBatch attention_batch(const WbBatch& b) {
    return {b.query_start_loc, b.seq_lens, b.block_table, b.num_requests, b.max_blocks};
  }

  // Everything that is used as an index, checked before anything is written.
  Status check(const WbBatch& b) const {
    if (!cache_) return Status::kNoCache;
    const int64_t slots = static_cast<int64_t>(num_blocks_) * s_.block_size;
    for (int t = 0; t < b.num_tokens; ++t) {
      if (b.input_ids[t] < 0 || b.input_ids[t] >= s_.vocab_size) return Status::kToken;
      if (b.positions[t] < 0 || b.positions[t] >= s_.max_model_len) return Status::kPosition;
      if (b.slot_mapping[t] < 0 || b.slot_mapping[t] >= slots) return Status::kSlot;
    }
    if (b.query_start_loc[0] != 0 || b.query_start_loc[b.num_requests] != b.num_tokens) return Status::kLength;
    for (int i = 0; i < b.num_requests; ++i) {
      const int query = b.query_start_loc[i + 1] - b.query_start_loc[i], context = b.seq_lens[i];
      const int blocks = ceil_div(context, s_.block_size);
      if (query < 1 || context < query || blocks > b.max_blocks) return Status::kLength;
      const int32_t* table = b.block_table + static_cast<size_t>(i) * static_cast<size_t>(b.max_blocks);
      for (int j = 0; j < blocks; ++j)
        if (table[j] < 0 || table[j] >= num_blocks_) return Status::kBlock;
    }
    for (int r = 0; r < b.num_logits; ++r)
      if (b.logits_indices[r] < 0 || b.logits_indices[r] >= b.num_tokens) return Status::kLogitsIndex;
    return Status::kOk;
  }

  void reserve(int tokens) {
    const size_t t = static_cast<size_t>(readable_rows<T>(tokens));
    hidden_.reserve(t * static_cast<size_t>(s_.hidden_size) * 4);
    kept_hidden_.reserve(t * static_cast<size_t>(s_.hidden_size) * 4);
    normed_.reserve(t * hidden_words_ * 4);
    qkv_.reserve(t * static_cast<size_t>(qkv_size_) * 4);
    query_.reserve(t * query_words_ * 4);
    attended_.reserve(t * attended_words_ * 4);
    kept_attended_.reserve(t * attended_words_ * 4);
    inner_.reserve(t * inner_words_ * 4);
  }

  void normalise_row(const float* x, int row, const float* weight, uint32_t* out) const {
    rms_norm(x + static_cast<size_t>(row) * static_cast<size_t>(s_.hidden_size), weight, s_.hidden_size, s_.rms_norm_eps,
             reinterpret_cast<T*>(out + static_cast<size_t>(row) * hidden_words_));
  }

  // y = norm(x) . W^T. Few rows are normalised by each thread for itself, many in a stage of their own.
  template <class Out>
  void norm_linear(const float* x, int rows, const float* weight, const Linear& lin, char* own, char* widened, StageWalk& stages,
                   StageKind kind, const Out& out) {
    if (rows > kFewRows) {
      for_rows(rows, stages.next(kNorm), [&](int r) { normalise_row(x, r, weight, normed_.as<uint32_t>()); });
      const auto shared = [&] { return normed_.as<const uint32_t>(); };
      return run_linear<T>(lin, shared, hidden_words_, rows, s_.num_threads, stages.next(kind), widened, out);
    }
    const auto prepare = [&] {
      uint32_t* copy = reinterpret_cast<uint32_t*>(own);
      for (int r = 0; r < rows; ++r) normalise_row(x, r, weight, copy);
      return static_cast<const uint32_t*>(copy);
    };
    run_linear<T>(lin, prepare, hidden_words_, rows, s_.num_threads, stages.next(kind), widened, out);
  }

  template <class F>
  void for_rows(int rows, Stage& stage, F&& row) const {
    const int chunk = std::max(1, std::min(16, rows / (4 * s_.num_threads)));
    stage.run(ceil_div(rows, chunk), [&](int unit) {
      for (int r = unit * chunk; r < std::min(rows, (unit + 1) * chunk); ++r) row(r);
    });
  }

  void run(const WbBatch& batch, int thread) {
    const MatrixUnitScope scope;
    char* own = private_.as<char>() + private_bytes_ * static_cast<size_t>(thread);
    char* widened = own + own_rows_bytes_;
    char* attention_scratch = widened + widened_bytes_;
    const size_t h = static_cast<size_t>(s_.hidden_size);
    const int tokens = batch.num_tokens;
    const AttentionBatch requests = attention_batch(batch);
    StageWalk stages{stages_.data()};
    float* hidden = hidden_.as<float>();
    int rows = tokens;
    const uint32_t* attended = attended_.as<uint32_t>();
    const auto attended_rows = [&] { return attended; };
    const auto inner_rows = [&] { return inner_.as<const uint32_t>(); };

    for_rows(tokens, stages.next(kEmbed), [&](int t) {
      embed_row(embed_, batch.input_ids[t], s_.hidden_size, hidden + static_cast<size_t>(t) * h);
    });
    for (size_t l = 0; l < layers_.size(); ++l) {
      const Layer& layer = layers_[l];
      const bool last = l + 1 == layers_.size();
      char* kv_layer = cache_.as<char>() + l * kv_.block_bytes * static_cast<size_t>(num_blocks_);
      norm_linear(hidden, tokens, layer.norm(kInputNorm), layer.qkv, own, widened, stages, kQkvStage,
                  StoreFloat{qkv_.as<float>(), static_cast<size_t>(qkv_size_)});
      for_rows(tokens, stages.next(kRope), [&](int t) { rotate_and_store(batch, layer, t, kv_layer); });
      if (last && batch.num_logits == 0) return;  // the cache is written: nothing else is wanted
      T* out = attended_.as<T>();
      attention_.run(plan_, requests, kv_layer, query_.as<uint32_t>(), out, attended_words_ * kPerWord<T>,
                     partials_.as<float>(), attention_scratch, s_.num_threads, stages.next(kAttention));
      if (!plan_.splits.empty())
        attention_.merge_split(plan_, out, attended_words_ * kPerWord<T>, partials_.as<float>(), attention_scratch,
                               stages.next(kMerge));
      if (last) {  // from here on only rows whose logits are wanted
        rows = batch.num_logits;
        for_rows(rows, stages.next(kKeepRows), [&](int r) { keep_row(batch, r); });
        hidden = kept_hidden_.as<float>();
        attended = kept_attended_.as<uint32_t>();
      }
      run_linear<T>(layer.o, attended_rows, attended_words_, rows, s_.num_threads, stages.next(kOStage), widened,
                    AddFloat{hidden, h});
      norm_linear(hidden, rows, layer.norm(kPostNorm), layer.gate_up, own, widened, stages, kGateUpStage,
                  GatedSilu<T>{inner_.as<T>(), inner_words_ * kPerWord<T>});
      run_linear<T>(layer.down, inner_rows, inner_words_, rows, s_.num_threads, stages.next(kDownStage), widened,
                    AddFloat{hidden, h});
    }
    norm_linear(hidden, rows, final_norm_.data(), lm_head_, own, widened, stages, kHead,
                StoreFloat{batch.logits, static_cast<size_t>(s_.vocab_size)});
  }

  void rotate_and_store(const WbBatch& batch, const Layer& layer, int t, char* kv_layer) {
    const size_t row = static_cast<size_t>(t);
    for (int part = 0; part < s_.num_heads + s_.num_kv_heads; ++part)
      rope_and_store(qkv_.as<float>() + row * static_cast<size_t>(qkv_size_), part, s_.num_heads, kv_, rope_,
                     batch.positions[t], batch.slot_mapping[t], layer.norm(kQNorm), layer.norm(kKNorm), s_.rms_norm_eps,
                     reinterpret_cast<T*>(query_.as<uint32_t>() + row * query_words_), kv_layer);
  }

  void keep_row(const WbBatch& batch, int r) {
    const size_t h = static_cast<size_t>(s_.hidden_size);
    const size_t from = static_cast<size_t>(batch.logits_indices[r]), to = static_cast<size_t>(r);
    std::copy_n(hidden_.as<float>() + from * h, h, kept_hidden_.as<float>() + to * h);
    std::copy_n(attended_.as<uint32_t>() + from * attended_words_, attended_words_,
                kept_attended_.as<uint32_t>() + to * attended_words_);
  }

  WbModelSpec s_;
  KvGeometry kv_;
  PagedAttention<T> attention_;
  AttentionPlan plan_;
  const T* embed_;
  std::vector<Layer> layers_;
  Linear lm_head_;
  std::vector<float> final_norm_;
  std::vector<Stage> stages_;
  bool timed_ = false;
  WbBatch batch_{};
  RopeTable rope_{};
  int num_blocks_ = 0;
  int q_size_ = 0, qkv_size_ = 0;
  size_t hidden_words_ = 0, attended_words_ = 0, inner_words_ = 0, query_words_ = 0;
  size_t own_rows_bytes_ = 0, widened_bytes_ = 0, private_bytes_ = 0;
  Buffer cache_, rope_memory_, private_, partials_;
  Buffer hidden_, kept_hidden_, normed_, qkv_, query_, attended_, kept_attended_, inner_;
  Populator populator_;
  Team team_;  // last: its threads end before what they use
};

}  // namespace wb
