// Backs a KV cache with memory while nothing else runs. The system gives a page of zeros at the first write to it, about 2 ms for
// a MiB in a virtual machine: a prompt of 256 tokens, 6 MB of keys and values, would pay 15 ms for that.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>

#if defined(__linux__)
#include <sys/resource.h>
#include <unistd.h>
#endif

#include "buffer.h"

namespace wb {

class Populator {
 public:
  Populator() = default;
  Populator(const Populator&) = delete;
  Populator& operator=(const Populator&) = delete;
  ~Populator() { stop(); }

  // `layers` neighbouring parts of `layer_bytes`: the first piece of each, then the second, as blocks are first used.
  void start(char* base, size_t layers, size_t layer_bytes) {
    stop();
    stop_ = false;
    thread_ = std::thread([=, this] {
#if defined(__linux__)
      constexpr int kNice = 10;  // a tenth of a busy core: enough to end soon when told to stop
      (void)setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice);  // a wish: without it only less polite
#endif
      constexpr size_t kPiece = size_t{2} << 20;
      for (size_t at = 0; at < layer_bytes; at += kPiece)
        for (size_t layer = 0; layer < layers && !stop_; ++layer)
          populate(base + layer * layer_bytes + at, std::min(kPiece, layer_bytes - at));
    });
  }

  void stop() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::thread thread_;
  std::atomic<bool> stop_{false};
};

}  // namespace wb
