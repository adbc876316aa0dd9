// Threads: the OpenMP pool that torch uses too. Work is cut into contiguous ranges, one per thread.
#pragma once

#include <omp.h>

#include <cstdint>
#include <cstdlib>
#include <memory>

namespace polybatch {

struct Range {
  int64_t begin, end;
};

inline Range share_of(int64_t items, int thread, int threads) {
  return {items * thread / threads, items * (thread + 1) / threads};
}

// Threads worth starting for `items` independent pieces of `work` in all (multiply-adds).
inline int threads_for(int64_t items, int64_t work) {
  constexpr int64_t kSmallWork = 1 << 15;  // about what a thread does while a parallel region starts
  if (work < kSmallWork || omp_in_parallel()) return 1;
  const int64_t threads = omp_get_max_threads();
  return static_cast<int>(items < threads ? items : threads);
}

// Waits for the rest of the team. A team of one may be inside someone else's parallel region and must not wait there.
inline void meet(int team) {
  if (team == 1) return;
#pragma omp barrier
}

// Calls work(thread, team) on each of `threads` threads, or here if that is one.
template <class Work>
void run_team(int threads, const Work& work) {
  if (threads == 1) {
    work(0, 1);
    return;
  }
#pragma omp parallel num_threads(threads)
  work(omp_get_thread_num(), omp_get_num_threads());
}

// Memory that a thread keeps between calls; contents are undefined after `get`.
class Scratch {
 public:
  static constexpr size_t kCacheLine = 64;
  template <class T>
  T* get(size_t count) {
    const size_t bytes = (count * sizeof(T) + kCacheLine - 1) / kCacheLine * kCacheLine;
    if (bytes > bytes_) {
      memory_.reset(std::aligned_alloc(kCacheLine, bytes));
      bytes_ = memory_ ? bytes : 0;
    }
    return static_cast<T*>(memory_.get());
  }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t bytes_ = 0;
};

}  // namespace polybatch
