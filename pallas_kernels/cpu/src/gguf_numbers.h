// Codes and factors of quantized weights as float32, 16 codes at a time.
#pragma once

#include <cstdint>
#include <cstring>

#include "vectors.h"

namespace pallas_kernels {
namespace {

inline float half_at(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
#if defined(__aarch64__)
  return half_to_float(bits);
#else
  return _cvtsh_ss(bits);
#endif
}

// 16 bytes as numbers.
inline __m512i bytes_at(const uint8_t* p) {
#if defined(__AVX512F__)
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
  return each_number<__m512i>([p](int i) { return widened_bytes_32(p + i * kPartLanes); });
#endif
}

inline __m512 low_nibbles(const __m512i& bytes) {
  return _mm512_cvtepi32_ps(_mm512_and_si512(bytes, _mm512_set1_epi32(15)));
}
inline __m512 high_nibbles(const __m512i& bytes) { return _mm512_cvtepi32_ps(_mm512_srli_epi32(bytes, 4)); }
inline __m512 signed_bytes_at(const uint8_t* p) {
#if defined(__AVX512F__)
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  return each_number<__m512>([p](int i) { return to_floats(widened_signed_bytes_32(p + i * kPartLanes)); });
#endif
}

// The 6-bit factors of one of eight groups of Q4_K, of all groups' 12 bytes.
struct SixBits {
  int scale, minimum;
};
inline SixBits six_bits(const uint8_t* packed, int group) {
  if (group < 4) return {packed[group] & 63, packed[group + 4] & 63};
  return {(packed[group + 4] & 15) | ((packed[group - 4] >> 2) & 48), (packed[group + 4] >> 4) | ((packed[group] >> 2) & 48)};
}

}  // namespace
}  // namespace pallas_kernels
