// y[r, i] = x[r, i] / sqrt(mean of x[r]^2 + epsilon) * (weight[i] + offset): bfloat16, computed in float32.
#pragma once

#include <cstdint>

#include "each.h"

namespace pallas_kernels {

struct RmsNorm {
  const uint16_t* x;       // [rows, size]
  const uint16_t* weight;  // [heads, size]: row r has those of head r % heads
  uint16_t* y;             // [rows, size]
  int64_t rows, heads, size;
  float epsilon, offset;
};

// Rows from first to last. Each is summed in one order, whatever the instruction set.
PALLAS_KERNELS_EACH(void rms_norm(const RmsNorm& n, int64_t first, int64_t last);)

}  // namespace pallas_kernels
