// Rotary embedding of the heads of one token, bfloat16: x and y are [heads, head_dim]; cos and sin [head_dim / 2].
#pragma once

#include <cstdint>

#include "each.h"

namespace pallas_kernels {

// Head h of the result lies at y + h * y_stride, in numbers.
PALLAS_KERNELS_EACH(void rope(const uint16_t* x, const float* cos, const float* sin, int64_t heads, int64_t head_dim,
                              uint16_t* y, int64_t y_stride);)

}  // namespace pallas_kernels
