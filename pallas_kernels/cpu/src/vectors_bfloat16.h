// What AVX-512 lacks without BF16 and VNNI.
#pragma once

#include <immintrin.h>

namespace pallas_kernels {
namespace {

// Rounded to bfloat16 in the upper half of each element. x holds no denormals: all arithmetic here flushes them.
inline __m512i rounded_to_bfloat16(__m512 x) {
  const __m512i bits = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
  const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, even), _mm512_set1_epi32(0x7fff));
  const __mmask16 none = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, none, bits, _mm512_set1_epi32(0x400000));
}

inline __m256bh _mm512_cvtneps_pbh(__m512 x) {
  return (__m256bh)_mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_to_bfloat16(x), 16));
}

inline __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
  const __m512i both = _mm512_castsi256_si512((__m256i)_mm512_cvtneps_pbh(low));
  return (__m512bh)_mm512_inserti64x4(both, (__m256i)_mm512_cvtneps_pbh(high), 1);
}

// The instruction multiplies and adds the odd elements, then the even ones, each time rounding once.
inline __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
  const auto odd = [](__m512bh x) {
    return _mm512_castsi512_ps(_mm512_and_si512((__m512i)x, _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  };
  const auto even = [](__m512bh x) { return _mm512_castsi512_ps(_mm512_slli_epi32((__m512i)x, 16)); };
  return _mm512_fmadd_ps(even(a), even(b), _mm512_fmadd_ps(odd(a), odd(b), sum));
}

// Adds the products of unsigned with signed bytes, four of them to each element.
inline __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
  const __m512i even = _mm512_madd_epi16(_mm512_and_si512(a, _mm512_set1_epi16(255)),
                                         _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8));
  const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(a, 8), _mm512_srai_epi16(b, 8));
  return _mm512_add_epi32(sum, _mm512_add_epi32(even, odd));
}

}  // namespace
}  // namespace pallas_kernels
