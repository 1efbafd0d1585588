// y[t, o] = sum over i of x[t, i] * w[o, i]: bfloat16 operands, float32 sums, in bfloat16 or float32. Or, gated, of the
// sums g of row o and u of row outputs + o of w, each rounded to bfloat16: y[t, o] = g / (1 + e^-g) * u, in bfloat16.
//
// Rows of w may be stored in another format (gguf.h). They are decoded to bfloat16 piece by piece, in the cache, and then
// are computed with by the very instructions that serve bfloat16: results are the same to the bit.
//
// Every element is computed by the same instructions in the same order, wherever it lies, whatever is beside it and
// however the work is cut up.
#pragma once

#include <cstdint>

#include "gguf.h"

namespace pallas_kernels {

struct Matmul {
  const uint16_t* x;  // [tokens, inputs]
  const uint8_t* w;   // [outputs, row_bytes], gated [2 * outputs, row_bytes]
  int64_t row_bytes;
  GGUFKind kind;       // of w
  const float* scale;  // [outputs], gated [2 * outputs]: the factor of each row's sums; or null
  void* y;             // [tokens, outputs]
  bool y_is_float32, gated;
  int64_t tokens, inputs, outputs;
};

// The outputs from first to last, of all tokens.
void matmul_avx512(const Matmul& m, int64_t first_output, int64_t last_output);

// Tiles read x in another order: for each block of 16 tokens and each step of 32 inputs a tile whose row k holds the
// pair of inputs 2k, 2k + 1 of every token; zeros beyond the ends.
constexpr int64_t kTokensPerBlock = 16, kInputsPerStep = 32, kBlocksPerCall = 32;

constexpr int64_t num_blocks(int64_t tokens) { return (tokens + kTokensPerBlock - 1) / kTokensPerBlock; }
constexpr int64_t num_steps(int64_t inputs) { return (inputs + kInputsPerStep - 1) / kInputsPerStep; }
constexpr int64_t packed_bytes(int64_t tokens, int64_t inputs) { return num_blocks(tokens) * num_steps(inputs) * 1024; }

// Writes one block of tokens of x in that order; packed: the beginning of all blocks, aligned to 64 bytes.
void matmul_amx_pack(const Matmul& m, void* packed, int64_t block);

// The outputs from first to last, of the blocks of tokens from first to last, not more than kBlocksPerCall; outputs
// begin at multiples of 16. next_output: where the thread will probably go on, or kNoOutput; those rows of w are read
// ahead.
constexpr int64_t kNoOutput = -1;
void matmul_amx(const Matmul& m, const void* packed, int64_t first_output, int64_t last_output, int64_t first_block,
                int64_t last_block, int64_t next_output);

// The same where w is not stored in bfloat16.
void quantized_matmul_amx(const Matmul& m, const void* packed, int64_t first_output, int64_t last_output,
                          int64_t first_block, int64_t last_block, int64_t next_output);

}  // namespace pallas_kernels
