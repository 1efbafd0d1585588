#include "quantize_head.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>
#include <math.h>
#include <string.h>

namespace pallas_kernels {
namespace {

// The largest magnitude, as the bits of a bfloat16 number: ordered like the numbers, infinity and then NaN last.
inline int largest_bits(const uint16_t* x, int64_t head_dim) {
  __m512i largest = _mm512_setzero_si512();
  for (int64_t i = 0; i < head_dim; i += 32) {
    const __mmask32 mask = head_dim - i >= 32 ? ~__mmask32{0} : (__mmask32{1} << (head_dim - i)) - 1;
    const __m512i magnitude = _mm512_and_si512(_mm512_maskz_loadu_epi16(mask, x + i), _mm512_set1_epi16(0x7fff));
    largest = _mm512_max_epu16(largest, magnitude);
  }
  const __m512i even = _mm512_and_si512(largest, _mm512_set1_epi32(0xffff)), odd = _mm512_srli_epi32(largest, 16);
  return _mm512_reduce_max_epi32(_mm512_max_epi32(even, odd));
}

}  // namespace

float INSTRUCTION_SET::quantize_head(const uint16_t* x, int64_t head_dim, int8_t* y) {
  const int bits = largest_bits(x, head_dim) << 16;
  float largest;
  memcpy(&largest, &bits, sizeof largest);
  const bool finite = isfinite(largest);
  if (!finite || largest < 0x1p-100f) {
    memset(y, 0, head_dim);
    return finite ? 0.0f : NAN;
  }
  const __m512 factor = _mm512_set1_ps(127.0f / largest);
  for (int64_t i = 0; i < head_dim; i += 16) {
    const __mmask16 mask = head_dim - i >= 16 ? 0xffff : static_cast<__mmask16>((1u << (head_dim - i)) - 1);
    const __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x + i)), 16);
    const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_castsi512_ps(wide), factor));
    _mm_mask_storeu_epi8(y + i, mask, _mm512_cvtepi32_epi8(rounded));
  }
  return largest * static_cast<float>(1.0 / 127);
}

}  // namespace pallas_kernels
#endif
