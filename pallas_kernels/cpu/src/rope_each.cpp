#include "rope.h"
#include "vectors.h"

namespace pallas_kernels {
namespace {

inline __m512 load(const uint16_t* p, unsigned mask) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p)), 16));
}

inline void store(uint16_t* p, unsigned mask, __m512 x) {
  _mm256_mask_storeu_epi16(p, mask, (__m256i)_mm512_cvtneps_pbh(x));
}

}  // namespace

void INSTRUCTION_SET::rope(const uint16_t* x, const float* cos, const float* sin, int64_t heads, int64_t head_dim,
                           uint16_t* y, int64_t y_stride) {
  const int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; i += 16) {
    const unsigned mask = half - i >= 16 ? 0xffff : (1u << (half - i)) - 1;
    const __m512 c = _mm512_maskz_loadu_ps(mask, cos + i), s = _mm512_maskz_loadu_ps(mask, sin + i);
    for (int64_t head = 0; head < heads; ++head) {
      const uint16_t* from = x + head * head_dim + i;
      uint16_t* to = y + head * y_stride + i;
      const __m512 a = load(from, mask), b = load(from + half, mask);
      store(to, mask, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
      store(to + half, mask, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
  }
}

}  // namespace pallas_kernels
