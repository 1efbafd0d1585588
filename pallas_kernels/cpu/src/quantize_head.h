// One head of a key or value, bfloat16, to bytes and a scale.
#pragma once

#include <cstdint>

namespace pallas_kernels {

// Returns the scale; its definition is quantize_heads in pallas_kernels/int8_pool.py, of which it has the bits.
float quantize_head_avx512(const uint16_t* x, int64_t head_dim, int8_t* y);

}  // namespace pallas_kernels
