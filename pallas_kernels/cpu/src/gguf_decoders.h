// Rows of quantized weights to bfloat16, by the instruction set that is compiled for. Included by sources that are
// compiled for one, and by nothing else.
#pragma once

#include "vectors.h"

#if defined(__AVX512F__)
#include "gguf_rows.h"
#else
#include "gguf_narrow_rows.h"
#endif

namespace pallas_kernels {
namespace {

inline Decode decoder_of(GGUFKind kind) {
  switch (kind) {
    case GGUFKind::kQ4_0: return decode_q4_0;
    case GGUFKind::kQ4_1: return decode_q4_1;
    case GGUFKind::kQ5_0: return decode_q5_0;
    case GGUFKind::kQ5_1: return decode_q5_1;
    case GGUFKind::kQ8_0: return decode_q8_0;
    case GGUFKind::kQ4_K: return decode_q4_k;
    case GGUFKind::kQ6_K: return decode_q6_k;
    case GGUFKind::kI8:
    case GGUFKind::kBF16: break;  // are computed with as they are
  }
  return nullptr;
}

}  // namespace
}  // namespace pallas_kernels
