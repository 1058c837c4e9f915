// Stages of a forward: how the team shares work and waits for each other.
//
// A stage is a number of units that threads take from a counter; it is over when all units are done, not when all threads
// have arrived. So a thread that the system has put aside (few cores, an HTTP server beside the engine) delays the others
// by the unit that it holds at most, and catches up by finding finished stages. A wait spins a little, then sleeps, which
// frees the core for the thread that is waited for.
#pragma once

#include <atomic>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace wb {

class alignas(128) Stage {
 public:
  void reset() {
    next_.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
  }

  // Do units 0..count-1 together with the rest of the team; `unit(i)` must not care who does it. Returns when all are done.
  template <class F>
  void run(int count, F&& unit) {
    int mine = 0;
    for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count; ++mine) unit(i);
    if (mine && done_.fetch_add(mine, std::memory_order_acq_rel) + mine == count) done_.notify_all();
    for (int spins = 0, done; (done = done_.load(std::memory_order_acquire)) < count; ++spins) {
      if (spins < kSpins)
        pause();
      else
        done_.wait(done, std::memory_order_acquire);
    }
  }

 private:
  static constexpr int kSpins = 2000;  // some 50 microseconds

  static void pause() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#endif
  }

  std::atomic<int> next_{0};
  std::atomic<int> done_{0};
};

}  // namespace wb
