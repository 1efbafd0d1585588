// Loops over independent pieces of work on XLA's own thread pool.
#pragma once

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace pallas_kernels {

// Calls body(data, i) for every i in [0, count), each exactly once, and returns when all are done. The calling thread
// takes part; idle threads of the pool join it, in any number, and take the next i in order. So a result may depend on
// i, never on which thread computed it. Nested calls are allowed.
void parallel_for(::xla::ffi::ThreadPool& pool, int64_t count, void (*body)(void*, int64_t), void* data);

template <typename Body>
void parallel_for(::xla::ffi::ThreadPool& pool, int64_t count, const Body& body) {
  parallel_for(
      pool, count, [](void* data, int64_t i) { (*static_cast<const Body*>(data))(i); }, const_cast<Body*>(&body));
}

}  // namespace pallas_kernels
