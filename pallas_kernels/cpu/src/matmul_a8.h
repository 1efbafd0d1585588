// Products with rows of w in blocks of few bits (gguf.h) and x rounded to 8 bits: each 32 inputs of a token to whole
// numbers from -127 to 127 and a factor, their largest magnitude over 127. With codes c of w, numbers q and a factor d of
// x, a block of 32 inputs adds
//
//   d * s * sum(c * q)  +  d * m * sum(q)
//
// where a number of w is s * c + m. Sums of a block are integers, exact in any order. Where m is s times a whole number
// they are one integer; Q6_K has two s in a block, and so two of them. All else is float32, block after block, in one
// order: an element has the same bits wherever it lies and on every processor.
#pragma once

#include "matmul.h"

namespace pallas_kernels {

// How blocks of w add up: with a whole number instead of m; with m; with a whole number and two s.
enum class Form { kWhole, kMinimum, kTwoScales };

constexpr Form form_of(GGUFKind kind) {
  switch (kind) {
    case GGUFKind::kQ4_1:
    case GGUFKind::kQ5_1:
    case GGUFKind::kQ4_K: return Form::kMinimum;
    case GGUFKind::kQ6_K: return Form::kTwoScales;
    default: return Form::kWhole;
  }
}

// What codes, which are unsigned here, exceed the number by that s is multiplied by.
constexpr int excess_of(GGUFKind kind) {
  switch (kind) {
    case GGUFKind::kQ4_0: return 8;
    case GGUFKind::kQ5_0: return 16;
    case GGUFKind::kQ6_K: return 32;
    case GGUFKind::kQ8_0: return 128;
    default: return 0;
  }
}

// Integers are added up on top of the bits of this number, as a float32 that is higher by them: for magnitudes below 2^22,
// a fused multiplication by s and subtraction of s times the number converts them, and rounds once.
constexpr float kZero = 0x1.8p23f;
constexpr int kZeroBits = 0x4b400000;

// Packed, 16 tokens of a step of 32 inputs are eight rows of four bytes of each token, then a row of factors, then two
// rows of what sums begin with: with m, d * sum(q); else kZeroBits - excess * sum(q), of both halves where s are two.
constexpr int64_t kFactorAt = 512, kFirstAt = 576, kSecondAt = 640, kA8StepBytes = 704;

// Rounds one block of tokens, up to m.not_zeros, and packs it; packed: the beginning of all blocks.
PALLAS_KERNELS_EACH(void pack_a8(const Matmul& m, void* packed, int64_t block);)

// As multiply, of x packed so.
PALLAS_KERNELS_EACH(void multiply_a8(const Matmul& m, const void* packed, int64_t first_output, int64_t last_output,
                                     int64_t first_block, int64_t last_block, int64_t next_output);)

}  // namespace pallas_kernels
