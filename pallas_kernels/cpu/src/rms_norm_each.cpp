#include "rms_norm.h"

#include <cmath>

#include "flush_denormals.h"
#include "lanes_bfloat16.h"

namespace pallas_kernels {
namespace {

inline unsigned mask_of(int64_t left) { return left >= 16 ? 0xffff : (1u << left) - 1; }

float sum_of_lanes(__m512 x) {
  alignas(64) float lane[16];
  _mm512_store_ps(lane, x);
  for (int half = 8; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}

float sum_of_squares(const uint16_t* x, int64_t size) {
  __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int64_t i = 0; i < size; i += 64)
    for (int part = 0; part < 4; ++part) {
      const int64_t at = i + part * 16;
      if (at >= size) break;
      const __m512 v = load_bfloat16(x + at, mask_of(size - at));
      sum[part] = _mm512_fmadd_ps(v, v, sum[part]);
    }
  return sum_of_lanes(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3])));
}

}  // namespace

void INSTRUCTION_SET::rms_norm(const RmsNorm& n, int64_t first, int64_t last) {
  const FlushDenormals flush;
  const __m512 offset = _mm512_set1_ps(n.offset);
  for (int64_t row = first; row < last; ++row) {
    const uint16_t *x = n.x + row * n.size, *weight = n.weight + row % n.heads * n.size;
    const float mean = sum_of_squares(x, n.size) / static_cast<float>(n.size);
    const __m512 factor = _mm512_set1_ps(1.0f / std::sqrt(mean + n.epsilon));
    for (int64_t i = 0; i < n.size; i += 16) {
      const unsigned mask = mask_of(n.size - i);
      const __m512 normed = _mm512_mul_ps(load_bfloat16(x + i, mask), factor);
      const __m512 y = _mm512_mul_ps(normed, _mm512_add_ps(load_bfloat16(weight + i, mask), offset));
      store_bfloat16(n.y + row * n.size + i, mask, y);
    }
  }
}

}  // namespace pallas_kernels
