// Vectors of 512 bits as several registers, continued: what moves numbers between lanes.
#pragma once

#include "vectors_emulated.h"

namespace pallas_kernels {
namespace {

inline __m512i _mm512_unpacklo_epi16(__m512i a, __m512i b) { return each<__m512i>(interleave_low_16, a, b); }
inline __m512i _mm512_unpackhi_epi16(__m512i a, __m512i b) { return each<__m512i>(interleave_high_16, a, b); }
inline __m512i _mm512_unpacklo_epi32(__m512i a, __m512i b) { return each<__m512i>(interleave_low_32, a, b); }
inline __m512i _mm512_unpackhi_epi32(__m512i a, __m512i b) { return each<__m512i>(interleave_high_32, a, b); }
inline __m512i _mm512_unpacklo_epi64(__m512i a, __m512i b) { return each<__m512i>(interleave_low_64, a, b); }
inline __m512i _mm512_unpackhi_epi64(__m512i a, __m512i b) { return each<__m512i>(interleave_high_64, a, b); }
inline __m512 _mm512_unpacklo_ps(__m512 a, __m512 b) {
  return _mm512_castsi512_ps(_mm512_unpacklo_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
inline __m512 _mm512_unpackhi_ps(__m512 a, __m512 b) {
  return _mm512_castsi512_ps(_mm512_unpackhi_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
inline __m512 _mm512_shuffle_ps(__m512 a, __m512 b, int selection) {
  switch (selection) {  // those asked for
    case 0x88: return each<__m512>(shuffle<0x88>, a, b);
    case 0xdd: return each<__m512>(shuffle<0xdd>, a, b);
    case 0x44: return each<__m512>(shuffle<0x44>, a, b);
    case 0xee: return each<__m512>(shuffle<0xee>, a, b);
  }
  __builtin_unreachable();
}

// Four numbers of 16.
inline __m128 quarter_of(const __m512& x, int i) {
  return i % 2 ? upper_quarter(x.part[i * kParts / 4]) : lower_quarter(x.part[i * kParts / 4]);
}
template <typename Vector = __m512>
inline Vector of_quarters(__m128 a, __m128 b, __m128 c, __m128 d) {
  if constexpr (kParts == 4)
    return Vector{a, b, c, d};
  else
    return Vector{from_quarters(a, b), from_quarters(c, d)};
}
inline __m512 _mm512_shuffle_f32x4(__m512 a, __m512 b, int selection) {
  return of_quarters(quarter_of(a, selection & 3), quarter_of(a, selection >> 2 & 3), quarter_of(b, selection >> 4 & 3),
                     quarter_of(b, selection >> 6 & 3));
}
inline __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int selection) {
  return _mm512_castps_si512(_mm512_shuffle_f32x4(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), selection));
}
inline __m128 _mm512_castps512_ps128(const __m512& x) { return quarter_of(x, 0); }
inline __m512 _mm512_castps128_ps512(__m128 x) { return of_quarters(x, __m128{}, __m128{}, __m128{}); }
inline __m512 _mm512_insertf32x4(const __m512& x, __m128 quarter, int at) {
  const auto pick = [&](int i) { return i == at ? quarter : quarter_of(x, i); };
  return of_quarters(pick(0), pick(1), pick(2), pick(3));
}
inline float _mm512_cvtss_f32(const __m512& x) { return x.part[0][0]; }
inline __m128i _mm512_castsi512_si128(const __m512i& x) { return (__m128i)quarter_of(_mm512_castsi512_ps(x), 0); }

// In the order of the compilers' sequences for AVX-512: halves, then quarters, then pairs.
template <typename Combine>
inline float combine_lanes(const __m512& x, const Combine& combine) {
  const __m128 fours = combine(combine(quarter_of(x, 0), quarter_of(x, 2)), combine(quarter_of(x, 1), quarter_of(x, 3)));
  const __m128 twos = combine(fours, __m128{fours[2], fours[3], fours[0], fours[1]});
  return combine(twos, __m128{twos[1], twos[0], twos[3], twos[2]})[0];
}
inline float _mm512_reduce_add_ps(const __m512& x) {
  return combine_lanes(x, [](__m128 a, __m128 b) { return a + b; });
}
inline float _mm512_reduce_max_ps(const __m512& x) {
  return combine_lanes(x, [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
}
inline int64_t _mm512_reduce_add_epi64(const __m512i& x) {
  int64_t numbers[8], sum = 0;
  std::memcpy(numbers, &x, sizeof numbers);
  for (const int64_t number : numbers) sum += number;
  return sum;
}
inline int _mm512_mask_reduce_min_epi32(unsigned mask, const __m512i& x) {
  int32_t numbers[16], least = INT32_MAX;
  std::memcpy(numbers, &x, sizeof numbers);
  for (; mask; mask &= mask - 1) {
    const int32_t number = numbers[__builtin_ctz(mask)];
    least = number < least ? number : least;
  }
  return least;
}

inline __m512i _mm512_maskz_compress_epi32(unsigned mask, const __m512i& x) {
  int32_t from[16], to[16] = {};
  std::memcpy(from, &x, sizeof from);
  for (int n = 0; mask; mask &= mask - 1) to[n++] = from[__builtin_ctz(mask)];
  return _mm512_loadu_si512(to);
}
inline __m512 _mm512_maskz_compress_ps(unsigned mask, const __m512& x) {
  return _mm512_castsi512_ps(_mm512_maskz_compress_epi32(mask, _mm512_castps_si512(x)));
}
inline __m512 _mm512_permutex2var_ps(const __m512& a, const __m512i& index, const __m512& b) {
  float from[32], to[16];
  int32_t indices[16];
  std::memcpy(from, &a, sizeof a);
  std::memcpy(from + 16, &b, sizeof b);
  std::memcpy(indices, &index, sizeof indices);
  for (int i = 0; i < 16; ++i) to[i] = from[indices[i] & 31];
  return _mm512_loadu_ps(to);
}

}  // namespace
}  // namespace pallas_kernels
