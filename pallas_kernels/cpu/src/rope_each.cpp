#include "rope.h"

#include "lanes_bfloat16.h"

namespace pallas_kernels {

void INSTRUCTION_SET::rope(const uint16_t* x, const float* cos, const float* sin, int64_t heads, int64_t head_dim,
                           uint16_t* y, int64_t y_stride) {
  const int64_t half = head_dim / 2;
  for (int64_t i = 0; i < half; i += 16) {
    const unsigned mask = half - i >= 16 ? 0xffff : (1u << (half - i)) - 1;
    const __m512 c = _mm512_maskz_loadu_ps(mask, cos + i), s = _mm512_maskz_loadu_ps(mask, sin + i);
    for (int64_t head = 0; head < heads; ++head) {
      const uint16_t* from = x + head * head_dim + i;
      uint16_t* to = y + head * y_stride + i;
      const __m512 a = load_bfloat16(from, mask), b = load_bfloat16(from + half, mask);
      store_bfloat16(to, mask, _mm512_fmsub_ps(a, c, _mm512_mul_ps(b, s)));
      store_bfloat16(to + half, mask, _mm512_fmadd_ps(b, c, _mm512_mul_ps(a, s)));
    }
  }
}

}  // namespace pallas_kernels
