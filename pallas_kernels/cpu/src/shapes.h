// Comparing the shapes that handlers are called with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "xla/ffi/api/ffi.h"

namespace pallas_kernels {

inline bool same(::xla::ffi::Span<const int64_t> x, ::xla::ffi::Span<const int64_t> y) {
  return std::equal(x.begin(), x.end(), y.begin(), y.end());
}

inline bool is(::xla::ffi::Span<const int64_t> shape, std::initializer_list<int64_t> expected) {
  return std::equal(shape.begin(), shape.end(), expected.begin(), expected.end());
}

}  // namespace pallas_kernels
