// Pools of keys and values in bytes, as handlers of XLA's FFI get them.
#pragma once

#include <algorithm>

#include "xla/ffi/api/ffi.h"

namespace pallas_kernels {

using Int8Values = ::xla::ffi::Buffer<::xla::ffi::S8>;     // [blocks, kv_heads, block_size, head_dim]
using Int8Scales = ::xla::ffi::Buffer<::xla::ffi::F32>;    // [blocks, kv_heads, block_size]

// Whether there is a scale for each key or value.
inline bool fit_together(const Int8Values& values, const Int8Scales& scales) {
  const auto vs = values.dimensions(), ss = scales.dimensions();
  return vs.size() == 4 && ss.size() == 3 && std::equal(ss.begin(), ss.end(), vs.begin());
}

}  // namespace pallas_kernels
