// Blocks of GGUF tensor types (ggml-common.h) to plain numbers.
#pragma once

#include <cstdint>

#include "each.h"

namespace pallas_kernels {

// Numbered as in files.
enum class GGUFKind { kQ4_0 = 2, kQ4_1 = 3, kQ5_0 = 6, kQ5_1 = 7, kQ8_0 = 8, kQ4_K = 12, kQ6_K = 14, kI8 = 24, kBF16 = 30 };

// A block's numbers and bytes.
struct Block {
  int64_t elements, bytes;
};

// Of a kind; {0, 0} for one that is not known.
constexpr Block block_of(GGUFKind kind) {
  switch (kind) {
    case GGUFKind::kQ4_0: return {32, 18};
    case GGUFKind::kQ4_1: return {32, 20};
    case GGUFKind::kQ5_0: return {32, 22};
    case GGUFKind::kQ5_1: return {32, 24};
    case GGUFKind::kQ8_0: return {32, 34};
    case GGUFKind::kQ4_K: return {256, 144};
    case GGUFKind::kQ6_K: return {256, 210};
    case GGUFKind::kI8: return {1, 1};
    case GGUFKind::kBF16: return {1, 2};
  }
  return {0, 0};
}

// Decodes `blocks` blocks into `out`, float32 or bfloat16 (each value rounded to float32 after every operation, and
// once more to bfloat16). False for a kind that is not known; of Q5_0, Q5_1 and Q6_K, only bfloat16 is.
PALLAS_KERNELS_EACH(bool decode_gguf(int kind, const uint8_t* raw, int64_t blocks, void* out, bool bfloat16);)

}  // namespace pallas_kernels
