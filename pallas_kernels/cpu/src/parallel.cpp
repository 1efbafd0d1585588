#include "parallel.h"

#include <immintrin.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

namespace pallas_kernels {
namespace {

// Shared by the threads of one loop; a helper that starts after the loop's end finds nothing to do.
struct Loop {
  Loop(int64_t count, void (*body)(void*, int64_t), void* data) : count(count), body(body), data(data) {}

  void run() {
    int64_t finished = 0;
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count; ++finished) body(data, i);
    if (finished == 0) return;
    if (done.fetch_add(finished, std::memory_order_acq_rel) + finished == count) {
      std::lock_guard<std::mutex> lock(mutex);
      all_done.notify_one();
    }
  }

  bool finished() const { return done.load(std::memory_order_acquire) == count; }

  void wait() {
    constexpr int kShortWait = 2000;  // pauses, some tens of microseconds: a sleep and a wake-up cost as much
    for (int i = 0; i < kShortWait; ++i) {
      if (finished()) return;
      _mm_pause();
    }
    std::unique_lock<std::mutex> lock(mutex);
    all_done.wait(lock, [this] { return finished(); });
  }

  const int64_t count;
  void (*const body)(void*, int64_t);
  void* const data;
  std::atomic<int64_t> next{0}, done{0};
  std::mutex mutex;
  std::condition_variable all_done;
};

}  // namespace

void parallel_for(::xla::ffi::ThreadPool& pool, int64_t count, void (*body)(void*, int64_t), void* data) {
  const int64_t helpers = std::min(count, pool.num_threads()) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < count; ++i) body(data, i);
    return;
  }
  const auto loop = std::make_shared<Loop>(count, body, data);
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule([loop] { loop->run(); });
  loop->run();
  loop->wait();
}

}  // namespace pallas_kernels
