// What attention over a cache of bytes is made of. Queries and weights become whole numbers of 16 bits, weights unsigned
// ones, each lane's times a factor of its own, whose high and low bytes are operands apart ("planes"). Sums of products
// of bytes are integers: exact, in any order and on every instruction set.
// Included by one source per instruction set and kind of cache, through attention_walk.h, and by nothing else.
#pragma once

#include <math.h>
#include <string.h>

#include "attention.h"
#include "attention_math.h"

namespace pallas_kernels {
namespace {

constexpr int64_t kByteRow = 64;      // bytes in a row of an operand: dims of a query and key, or keys of values
constexpr int64_t kByteTile = 1024;   // bytes in an operand
constexpr int64_t kMostOperands = 4;  // with which one is multiplied at once
constexpr float kLargestQuery = 127 * 256, kLargestWeight = 255 * 256;

// Factors from numbers up to `largest`, which may be no number, to codes, and back; all below 2^-100 count as zeros.
inline __m512 to_codes(__m512 largest, float largest_code) {
  const __mmask16 some = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(0x1p-100f), _CMP_GE_OQ);
  return _mm512_maskz_div_ps(some, _mm512_set1_ps(largest_code), largest);
}
inline __m512 from_codes(__m512 largest, float largest_code) {
  return _mm512_mul_ps(largest, _mm512_set1_ps(1 / largest_code));
}

// The high bytes of signed codes; low bytes, signed as well, are the codes' own last ones.
inline __m512i high_codes(__m512i codes) {
  return _mm512_srai_epi32(_mm512_add_epi32(codes, _mm512_set1_epi32(128)), 8);
}

// What sums over both planes make.
inline __m512 join(__m512i high, __m512i low) {
  return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 8), low));
}

// One query's bytes, and its factor.
inline float quantize_query(const uint16_t* q, int64_t head_dim, int8_t* high, int8_t* low) {
  const auto wide = [q](int64_t i) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + i));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  };
  __m512 top = _mm512_setzero_ps(), sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < head_dim; i += kLanes) {
    const __m512 x = wide(i);
    top = _mm512_max_ps(top, _mm512_abs_ps(x));
    sum = _mm512_add_ps(sum, _mm512_sub_ps(x, x));  // no number if one of them is none, or infinite
  }
  const __m512 largest = _mm512_set1_ps(_mm512_reduce_max_ps(top)), factor = to_codes(largest, kLargestQuery);
  for (int64_t i = 0; i < head_dim; i += kLanes) {
    const __m512i codes = _mm512_cvtps_epi32(_mm512_mul_ps(wide(i), factor));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(high + i), _mm512_cvtepi32_epi8(high_codes(codes)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(low + i), _mm512_cvtepi32_epi8(codes));
  }
  return _mm512_cvtss_f32(from_codes(largest, kLargestQuery)) + _mm512_reduce_add_ps(sum);
}

// Quads of the values of four keys, for 64 dims: in x[m] the dims 4 m + 0-3, 16 + 4 m + 0-3, 32 + ..., 48 + ...
inline void interleave(__m512i (&x)[4]) {
  const __m512i a = _mm512_unpacklo_epi8(x[0], x[1]), b = _mm512_unpackhi_epi8(x[0], x[1]);
  const __m512i c = _mm512_unpacklo_epi8(x[2], x[3]), d = _mm512_unpackhi_epi8(x[2], x[3]);
  x[0] = _mm512_unpacklo_epi16(a, c);
  x[1] = _mm512_unpackhi_epi16(a, c);
  x[2] = _mm512_unpacklo_epi16(b, d);
  x[3] = _mm512_unpackhi_epi16(b, d);
}

// The dim that number i of tile m is then, over all tiles.
inline int64_t dim_of(int64_t m, int64_t i) { return m / 4 * 64 + i / 4 * 16 + m % 4 * 4 + i % 4; }

// 16 numbers of each of four tiles in the order of their dims.
inline void put_in_order(__m512 (&x)[4]) {
  const __m512 a = _mm512_shuffle_f32x4(x[0], x[1], 0x44), b = _mm512_shuffle_f32x4(x[0], x[1], 0xee);
  const __m512 c = _mm512_shuffle_f32x4(x[2], x[3], 0x44), d = _mm512_shuffle_f32x4(x[2], x[3], 0xee);
  x[0] = _mm512_shuffle_f32x4(a, c, 0x88);
  x[1] = _mm512_shuffle_f32x4(a, c, 0xdd);
  x[2] = _mm512_shuffle_f32x4(b, d, 0x88);
  x[3] = _mm512_shuffle_f32x4(b, d, 0xdd);
}

// The low bytes of four unsigned codes in each lane, and the high ones.
inline __m512i pack_low(const __m512i (&c)[4]) {
  const __m512i two = _mm512_mask_blend_epi8(0x2222222222222222, c[0], _mm512_slli_epi32(c[1], 8));
  const __m512i three = _mm512_mask_blend_epi8(0x4444444444444444, two, _mm512_slli_epi32(c[2], 16));
  return _mm512_mask_blend_epi8(0x8888888888888888, three, _mm512_slli_epi32(c[3], 24));
}

inline __m512i pack_high(const __m512i (&c)[4]) {
  const __m512i two = _mm512_mask_blend_epi8(0x2222222222222222, _mm512_srli_epi32(c[0], 8), c[1]);
  const __m512i three = _mm512_mask_blend_epi8(0x4444444444444444, two, _mm512_slli_epi32(c[2], 8));
  return _mm512_mask_blend_epi8(0x8888888888888888, three, _mm512_slli_epi32(c[3], 16));
}

}  // namespace
}  // namespace pallas_kernels
