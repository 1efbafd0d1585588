// Loops over independent pieces of work on XLA's own thread pool.
#pragma once

#include <cstdint>
#include <type_traits>

#include "xla/ffi/api/ffi.h"

namespace pallas_kernels {

constexpr int64_t kNoPiece = -1;

// Calls body(data, i, next) for every i in [0, count), each exactly once, and returns when all are done. The calling
// thread takes part; idle threads of the pool join it, in any number. So a result may depend on i, never on which thread
// computed it. Of n threads each goes through every n-th i, and then through what others have left; `next` is what the
// thread will probably do after i, or kNoPiece. Nested calls are allowed.
void parallel_for(::xla::ffi::ThreadPool& pool, int64_t count, void (*body)(void*, int64_t, int64_t), void* data);

// With a body(i) or a body(i, next).
template <typename Body>
void parallel_for(::xla::ffi::ThreadPool& pool, int64_t count, const Body& body) {
  const auto call = [](void* data, int64_t i, int64_t next) {
    const Body& body = *static_cast<const Body*>(data);
    if constexpr (std::is_invocable_v<Body, int64_t, int64_t>) {
      body(i, next);
    } else {
      body(i);
    }
  };
  parallel_for(pool, count, call, const_cast<Body*>(&body));
}

}  // namespace pallas_kernels
