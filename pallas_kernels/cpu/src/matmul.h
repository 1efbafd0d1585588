// y[t, o] = sum over i of x[t, i] * w[o, i]: bfloat16 operands, float32 sums, in bfloat16 or float32. Or, gated, of the
// sums g of row o and u of row outputs + o of w, each rounded to bfloat16: y[t, o] = activation(g) * u, in bfloat16.
//
// Rows of w may be stored in another format (gguf.h). They are decoded to bfloat16 piece by piece, in the cache, and then
// are computed with by the very instructions that serve bfloat16: results are the same to the bit. Of I8, x is
// quantized as well, row by row, to 16 bits; sums over its high and over its low bytes are integers, exact in any order.
//
// Every element is computed by the same instructions in the same order, wherever it lies, whatever is beside it and
// however the work is cut up.
#pragma once

#include <cstdint>

#include "gguf.h"

namespace pallas_kernels {

// g sigmoid(g); g sigmoid(2 sqrt(2 / pi) (g + 0.044715 g^3)), which is GELU approximated with tanh.
enum class Activation : int64_t { kSilu, kGeluTanh, kCount };

struct Matmul {
  const uint16_t* x;  // [tokens, inputs]; of I8, rows of bytes (quantize_rows), two of which are an input
  const uint8_t* w;   // [outputs, row_bytes], gated [2 * outputs, row_bytes]
  int64_t row_bytes;
  GGUFKind kind;         // of w
  const float* scale;    // of I8: the factors of w's rows, [outputs], gated [2 * outputs]
  const float* x_scale;  // and of x's, [tokens]
  bool x_is_higher;      // of I8: whether bytes of x are packed 128 higher, unsigned
  bool rounds_x;         // of blocks: whether they are multiplied by numbers of 8 bits (matmul_a8.h)
  void* y;             // [tokens, outputs]
  bool y_is_float32, gated;
  Activation activation;  // gated
  int64_t tokens, inputs, outputs;
  int64_t not_zeros;  // a token after the first so many is zeros, and so are its products
};

// Tokens of x in bfloat16, from first to last, to whole numbers from -32512 to 32512 and each token's factor, its largest
// magnitude over 32512. Of 8 tokens there are 8 rows of high bytes, then 8 rows of low ones, both signed. Below 2^-100 a
// token counts as zeros; one with values that are no numbers, or infinite, has a factor that is no number.
constexpr int64_t kQuantizedTokens = 8;
constexpr int64_t high_row(int64_t token) { return token + token / kQuantizedTokens * kQuantizedTokens; }
constexpr int64_t low_row(int64_t token) { return high_row(token) + kQuantizedTokens; }
PALLAS_KERNELS_EACH(void quantize_rows(const uint16_t* x, int64_t inputs, int64_t first, int64_t last, uint8_t* codes,
                                       float* scale);)

// Whether rows of w are computed with as they lie in memory.
constexpr bool is_plain(const Matmul& m) { return m.kind == GGUFKind::kBF16 || m.kind == GGUFKind::kI8; }

constexpr int kFourHigher = static_cast<int>(0x80808080);  // four bytes of 128

// Products read x in another order: for each block of 16 rows and each step of 32 inputs a tile whose row k holds the
// pair of inputs 2k, 2k + 1 of every row; zeros beyond the ends. A row is a token; of I8, one of its two.
constexpr int64_t kRowsPerBlock = 16, kInputsPerStep = 32, kStepBytes = 1024, kBlocksPerCall = 32;

constexpr int64_t tokens_per_block(const Matmul& m) { return m.kind == GGUFKind::kI8 ? kQuantizedTokens : kRowsPerBlock; }
constexpr int64_t num_blocks(const Matmul& m) { return (m.tokens + tokens_per_block(m) - 1) / tokens_per_block(m); }
constexpr int64_t num_steps(int64_t inputs) { return (inputs + kInputsPerStep - 1) / kInputsPerStep; }

// Writes one block of rows of x in that order; packed: the beginning of all blocks, aligned to 64 bytes.
PALLAS_KERNELS_EACH(void pack_rows(const Matmul& m, void* packed, int64_t block);)

// The outputs from first to last, of the blocks from first to last, not more than kBlocksPerCall; outputs begin at
// multiples of 16. next_output: where the thread will probably go on, or kNoOutput; those rows of w are read ahead.
constexpr int64_t kNoOutput = -1;
PALLAS_KERNELS_EACH(void multiply(const Matmul& m, const void* packed, int64_t first_output, int64_t last_output,
                                  int64_t first_block, int64_t last_block, int64_t next_output);)
void multiply_amx(const Matmul& m, const void* packed, int64_t first_output, int64_t last_output, int64_t first_block,
                  int64_t last_block, int64_t next_output);

}  // namespace pallas_kernels
