// Pools of keys and values in bytes, as handlers of XLA's FFI get them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "quantize_head.h"
#include "xla/ffi/api/ffi.h"

namespace pallas_kernels {

using Int8Values = ::xla::ffi::Buffer<::xla::ffi::S8>;     // [blocks, kv_heads, block_size, head_dim]
using Int8Scales = ::xla::ffi::Buffer<::xla::ffi::F32>;    // [blocks, kv_heads, block_size]

// Whether there is a scale for each key or value.
inline bool fit_together(const Int8Values& values, const Int8Scales& scales) {
  const auto vs = values.dimensions(), ss = scales.dimensions();
  return vs.size() == 4 && ss.size() == 3 && std::equal(ss.begin(), ss.end(), vs.begin());
}

struct Int8Pool {
  Int8Pool(const Int8Values& bytes, const Int8Scales& factors)
      : values(bytes.typed_data()), scales(factors.typed_data()), kv_heads(bytes.dimensions()[1]),
        block_size(bytes.dimensions()[2]), head_dim(bytes.dimensions()[3]) {}

  // Puts a token's heads, [kv_heads, head_dim], into a slot.
  void write(int64_t slot, const uint16_t* heads) const {
    const int64_t block = slot / block_size, offset = slot % block_size;
    for (int64_t head = 0; head < kv_heads; ++head) {
      const int64_t at = (block * kv_heads + head) * block_size + offset;
      scales[at] = quantize_head_avx512(heads + head * head_dim, head_dim, values + at * head_dim);
    }
  }

  int8_t* values;
  float* scales;
  int64_t kv_heads, block_size, head_dim;
};

// Which token's slot is outside the pool, or nothing.
inline std::string find_wrong_slot(const ::xla::ffi::Buffer<::xla::ffi::S32>& slots, int64_t count) {
  const int32_t* slot = slots.typed_data();
  for (int64_t token = 0; token < slots.dimensions()[0]; ++token)
    if (slot[token] < 0 || slot[token] >= count)
      return "token " + std::to_string(token) + " has slot " + std::to_string(slot[token]) + " of " +
             std::to_string(count);
  return {};
}

}  // namespace pallas_kernels
