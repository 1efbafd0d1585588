// y[t, o] = sum over i of x[t, i] * w[o, i]: bfloat16 operands, float32 sums, in bfloat16 or float32.
#pragma once

#include <cstdint>

namespace pallas_kernels {

struct Matmul {
  const uint16_t* x;  // [tokens, inputs]
  const uint16_t* w;  // [outputs, inputs]
  void* y;            // [tokens, outputs]
  bool y_is_float32;
  int64_t tokens, inputs, outputs;
};

// Every element is computed by the same instructions in the same order, wherever it lies and whatever is beside it.
void matmul_avx512(const Matmul& m, int64_t first_output, int64_t last_output);

}  // namespace pallas_kernels
