// Blocks of GGUF tensor types (ggml-common.h) to plain numbers.
#pragma once

#include <cstdint>

namespace pallas_kernels {

enum class GGUFKind { kQ4_0 = 2, kQ4_1 = 3, kQ8_0 = 8, kQ4_K = 12 };  // as numbered in files

// Decodes `blocks` blocks into `out`, float32 or bfloat16 (each value rounded to float32 after every operation, and
// once more to bfloat16). False for a kind that is not known.
bool decode_gguf_avx512(int kind, const uint8_t* raw, int64_t blocks, void* out, bool bfloat16);

}  // namespace pallas_kernels
