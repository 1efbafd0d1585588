// One head of a key or value, bfloat16, to bytes and a scale.
#pragma once

#include <cstdint>

#include "each.h"

namespace pallas_kernels {

// Returns the scale; its definition is quantize_heads in pallas_kernels/scaled_pool.py, of which it has the bits.
PALLAS_KERNELS_OF_BYTES(float quantize_head(const uint16_t* x, int64_t head_dim, int8_t* y);)

}  // namespace pallas_kernels
