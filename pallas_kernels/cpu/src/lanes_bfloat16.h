// 16 bfloat16 numbers of memory as float32 lanes, and back; those of the first bits of a mask.
// Included by sources that are compiled for one instruction set, and by nothing else.
#pragma once

#include "vectors.h"

namespace pallas_kernels {
namespace {

inline __m512 load_bfloat16(const uint16_t* p, unsigned mask) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p)), 16));
}

inline void store_bfloat16(uint16_t* p, unsigned mask, __m512 x) {
  _mm256_mask_storeu_epi16(p, mask, (__m256i)_mm512_cvtneps_pbh(x));
}

}  // namespace
}  // namespace pallas_kernels
