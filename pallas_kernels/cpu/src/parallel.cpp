#include "parallel.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pallas_kernels {
namespace {

// Lets the core do something else, for a moment.
void rest() {
#if defined(__x86_64__)
  _mm_pause();
#else
  __asm__ volatile("yield");
#endif
}

// Shared by the threads of one loop; a helper that starts after the loop's end finds nothing to do.
struct Loop {
  Loop(int64_t count, int64_t threads, void (*body)(void*, int64_t, int64_t), void* data)
      : count(count), threads(threads), body(body), data(data), taken(new Taken[threads]) {}

  void run() {
    const int64_t mine = arrived.fetch_add(1, std::memory_order_relaxed);
    int64_t finished = 0;
    for (int64_t k = 0; k < threads; ++k) finished += run_share((mine + k) % threads);
    if (finished == 0) return;
    if (done.fetch_add(finished, std::memory_order_acq_rel) + finished == count) {
      std::lock_guard<std::mutex> lock(mutex);
      all_done.notify_one();
    }
  }

  // What is left of every threads-th piece from number `share` on.
  int64_t run_share(int64_t share) {
    int64_t finished = 0;
    for (;; ++finished) {
      const int64_t i = share + threads * taken[share].pieces.fetch_add(1, std::memory_order_relaxed);
      if (i >= count) return finished;
      body(data, i, i + threads < count ? i + threads : kNoPiece);
    }
  }

  bool finished() const { return done.load(std::memory_order_acquire) == count; }

  void wait() {
    constexpr int kShortWait = 2000;  // pauses, some tens of microseconds: a sleep and a wake-up cost as much
    for (int i = 0; i < kShortWait; ++i) {
      if (finished()) return;
      rest();
    }
    std::unique_lock<std::mutex> lock(mutex);
    all_done.wait(lock, [this] { return finished(); });
  }

  struct alignas(64) Taken {
    std::atomic<int64_t> pieces{0};
  };

  const int64_t count, threads;
  void (*const body)(void*, int64_t, int64_t);
  void* const data;
  const std::unique_ptr<Taken[]> taken;
  std::atomic<int64_t> arrived{0}, done{0};
  std::mutex mutex;
  std::condition_variable all_done;
};

}  // namespace

void parallel_for(::xla::ffi::ThreadPool& pool, int64_t count, void (*body)(void*, int64_t, int64_t), void* data) {
  const int64_t threads = std::min(count, pool.num_threads());
  if (threads <= 1) {
    for (int64_t i = 0; i < count; ++i) body(data, i, i + 1 < count ? i + 1 : kNoPiece);
    return;
  }
  const auto loop = std::make_shared<Loop>(count, threads, body, data);
  for (int64_t i = 1; i < threads; ++i) pool.Schedule([loop] { loop->run(); });
  loop->run();
  loop->wait();
}

}  // namespace pallas_kernels
