// What the compiler's own vectors of one register do not express, on AVX2.
#pragma once

#include <immintrin.h>

namespace pallas_kernels {
namespace {

using Floats = __m256;
using Ints = __m256i;

inline Floats fused(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats fused_less(Floats a, Floats b, Floats c) { return _mm256_fmsub_ps(a, b, c); }
inline Floats less_fused(Floats a, Floats b, Floats c) { return _mm256_fnmadd_ps(a, b, c); }
// The second of both where they do not compare.
inline Floats larger(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats smaller(Floats a, Floats b) { return _mm256_min_ps(a, b); }
inline Floats rounded_down(Floats x) { return _mm256_floor_ps(x); }
inline Floats rounded_to_nearest(Floats x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Ints to_nearest(Floats x) { return _mm256_cvtps_epi32(x); }
inline Floats to_floats(Ints x) { return _mm256_cvtepi32_ps(x); }
inline Floats chosen(Ints mask, Floats yes, Floats no) {
  return _mm256_blendv_ps(no, yes, _mm256_castsi256_ps(mask));
}
// Reads no others.
inline Floats load_chosen(Ints mask, const float* p) { return _mm256_maskload_ps(p, mask); }
inline unsigned signs(Ints mask) { return static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(mask))); }

inline Ints interleave_low_16(Ints a, Ints b) { return _mm256_unpacklo_epi16(a, b); }
inline Ints interleave_high_16(Ints a, Ints b) { return _mm256_unpackhi_epi16(a, b); }
inline Ints interleave_low_32(Ints a, Ints b) { return _mm256_unpacklo_epi32(a, b); }
inline Ints interleave_high_32(Ints a, Ints b) { return _mm256_unpackhi_epi32(a, b); }
inline Ints interleave_low_64(Ints a, Ints b) { return _mm256_unpacklo_epi64(a, b); }
inline Ints interleave_high_64(Ints a, Ints b) { return _mm256_unpackhi_epi64(a, b); }
template <int kSelection>
inline Floats shuffle(Floats a, Floats b) {
  return _mm256_shuffle_ps(a, b, kSelection);
}

inline __m128 lower_quarter(Floats x) { return _mm256_castps256_ps128(x); }
inline __m128 upper_quarter(Floats x) { return _mm256_extractf128_ps(x, 1); }
inline Floats from_quarters(__m128 low, __m128 high) { return _mm256_set_m128(high, low); }

inline unsigned _mm_cmp_ps_mask(__m128 a, __m128 b, int) {  // _CMP_NEQ_UQ, the only one asked for
  return static_cast<unsigned>(_mm_movemask_ps(_mm_cmpneq_ps(a, b)));
}

// Bytes into elements of 16 bits, with their sign, and of 32 bits, without.
inline Ints widened_bytes(const int8_t* p) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline Ints widened_bytes_32(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline Ints widened_signed_bytes_32(const uint8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
// Adds the products of both elements of 16 bits of each lane.
inline Ints add_products_16(Ints sum, Ints a, Ints b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }

using Doubles = __m256d;
inline Doubles lower_doubles(Floats x) { return _mm256_cvtps_pd(_mm256_castps256_ps128(x)); }
inline Doubles upper_doubles(Floats x) { return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1)); }

// 16 bytes.
using Bytes = __m128i;
inline Bytes load_bytes(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
inline void store_bytes(void* p, Bytes x) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }
inline Bytes low_nibbles_of(Bytes x) { return _mm_and_si128(x, _mm_set1_epi8(15)); }
inline Bytes high_nibbles_of(Bytes x) { return low_nibbles_of(_mm_srli_epi16(x, 4)); }
inline Bytes look_up(Bytes table, Bytes index) { return _mm_shuffle_epi8(table, index); }
inline Bytes interleave_low_8(Bytes a, Bytes b) { return _mm_unpacklo_epi8(a, b); }
inline Bytes interleave_high_8(Bytes a, Bytes b) { return _mm_unpackhi_epi8(a, b); }
// Of 16 numbers of 16 bits the low bytes, and the high ones.
inline Bytes even_bytes(Bytes a, Bytes b) {
  return _mm_packus_epi16(_mm_and_si128(a, _mm_set1_epi16(255)), _mm_and_si128(b, _mm_set1_epi16(255)));
}
inline Bytes odd_bytes(Bytes a, Bytes b) { return _mm_packus_epi16(_mm_srli_epi16(a, 8), _mm_srli_epi16(b, 8)); }

// Eight numbers of 16 bits into the lower halves of elements; 16 of them from there.
inline Ints widened(const uint16_t* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void narrow(const Ints (&x)[2], uint16_t* p) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(x[0], x[1]), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}

}  // namespace
}  // namespace pallas_kernels
