// The threads of one model, and how they share the stages of a forward.
//
// A stage is a number of units that threads take from a counter; it is over when all units are done, not when all threads
// have arrived. So a thread that the system has put aside (few cores, an HTTP server beside the engine) delays the others
// by the unit that it holds at most, and catches up by finding finished stages. Nor does a job wait at its end for threads
// that hold nothing. Waiting spins a little, then sleeps: the core is then free for the thread that is waited for, or for
// another process.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace wb {

// Until `ready(value)`; returns the value. Some 50 microseconds of spinning, then sleep until the value changes.
template <class T, class Ready>
T wait_for(const std::atomic<T>& value, Ready&& ready) {
  constexpr int kSpins = 2000;
  for (int spins = 0;; ++spins) {
    const T now = value.load(std::memory_order_seq_cst);
    if (ready(now)) return now;
    if (spins >= kSpins) {
      value.wait(now, std::memory_order_seq_cst);
      continue;
    }
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#endif
  }
}

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class alignas(128) Stage {
 public:
  // For benchmarks: what the stage is, when it ended, how long threads waited for that, summed over them (monotonic ns).
  std::atomic<int> kind{0};
  std::atomic<int64_t> ended_ns{0}, waited_ns{0};

  // Before the team comes. `timed`: keep times of the next run.
  void reset(bool timed) {
    next_.store(0, std::memory_order_relaxed);
    done_.store(0, std::memory_order_relaxed);
    timed_ = timed;
    ended_ns = waited_ns = 0;
  }

  // Do units 0..count-1 together with the rest of the team; `unit(i)` must not care who does it. Returns when all are done.
  template <class F>
  void run(int count, F&& unit) {
    int mine = 0;
    for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count; ++mine) unit(i);
    const int64_t begin = timed_ ? now_ns() : 0;
    if (mine && done_.fetch_add(mine, std::memory_order_acq_rel) + mine == count) {
      if (timed_) ended_ns = begin;
      done_.notify_all();
    }
    wait_for(done_, [count](int done) { return done >= count; });
    if (timed_) waited_ns += now_ns() - begin;
  }

 private:
  std::atomic<int> next_{0};
  std::atomic<int> done_{0};
  bool timed_ = false;
};

class Team {
 public:
  explicit Team(int threads) : threads_(threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team() {
    settle();
    stop_ = true;
    generation_.fetch_add(1);
    generation_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  int threads() const { return threads_; }

  // Run job(thread) on the caller (thread 0) and on every worker that wakes in time. The job must consist of stages, so that
  // it is complete when the caller's part returns. A late worker may still be walking through finished stages then: what it
  // reads outside of units must stay as it is until `settle`.
  void run(const std::function<void(int)>& job) {
    settle();
    job_ = job;
    open_ = true;
    generation_.fetch_add(1);
    generation_.notify_all();
    job(0);
    open_ = false;
  }

  // Wait until no worker is inside the last job.
  void settle() {
    wait_for(inside_, [](int inside) { return inside == 0; });
  }

 private:
  void work(int thread) {
    for (unsigned seen = 0; !stop_;) {
      seen = wait_for(generation_, [seen](unsigned now) { return now != seen; });
      // Enter first, then look whether the job is still open: the caller closes it first, then looks who is inside.
      inside_.fetch_add(1);
      if (open_) job_(thread);
      if (inside_.fetch_sub(1) == 1) inside_.notify_all();
    }
  }

  const int threads_;
  std::vector<std::thread> workers_;
  std::function<void(int)> job_;
  std::atomic<unsigned> generation_{0};
  std::atomic<int> inside_{0};
  std::atomic<bool> open_{false};
  std::atomic<bool> stop_{false};
};

}  // namespace wb
