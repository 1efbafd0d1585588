// Products by vectors, and what products need first: x quantized, and x in the order that they read it in.
#include "flush_denormals.h"
#include "lanes_bfloat16.h"
#include "matmul_products.h"

namespace pallas_kernels {

void INSTRUCTION_SET::quantize_rows(const uint16_t* x, int64_t inputs, int64_t first, int64_t last, uint8_t* codes,
                                    float* scale) {
  const auto each = [=](int64_t row, const auto& visit) {
    for (int64_t i = 0; i < inputs; i += 16) {
      const unsigned mask = inputs - i >= 16 ? 0xffff : (1u << (inputs - i)) - 1;
      visit(i, load_bfloat16(x + row * inputs + i, mask), mask);
    }
  };
  for (int64_t row = first; row < last; ++row) {
    __m512 top = _mm512_setzero_ps(), sum = _mm512_setzero_ps();
    each(row, [&](int64_t, __m512 v, unsigned) {
      top = _mm512_max_ps(top, _mm512_abs_ps(v));
      sum = _mm512_add_ps(sum, _mm512_sub_ps(v, v));  // no number if one of them is none, or infinite
    });
    const float largest = _mm512_reduce_max_ps(top);
    const __m512 factor = _mm512_set1_ps(largest >= 0x1p-100f ? 32512.0f / largest : 0.0f);
    uint8_t *high = codes + high_row(row) * inputs, *low = codes + low_row(row) * inputs;
    each(row, [&](int64_t i, __m512 v, unsigned mask) {
      const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(v, factor));
      _mm512_mask_cvtepi32_storeu_epi8(low + i, mask, code);
      _mm512_mask_cvtepi32_storeu_epi8(high + i, mask, _mm512_srai_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(128)), 8));
    });
    scale[row] = largest * (1.0f / 32512.0f) + _mm512_reduce_add_ps(sum);
  }
}

void INSTRUCTION_SET::pack_rows(const Matmul& m, void* packed, int64_t block) {
  const int64_t first = block * kRowsPerBlock, count = m.kind == GGUFKind::kI8 ? kRowsPerBlock : tokens_in(m, block);
  const int64_t steps = num_steps(m.inputs);
  const __m512i higher = _mm512_set1_epi32(m.x_is_higher ? kFourHigher : 0);
  char* to = static_cast<char*>(packed) + block * steps * kStepBytes;
  for (int64_t s = 0; s < steps; ++s, to += kStepBytes) {
    const int64_t input = s * kInputsPerStep, left = m.inputs - input;
    const uint32_t mask = left >= 32 ? 0xffffffff : (1u << left) - 1;
    __m512i row[16];
    for (int64_t i = 0; i < 16; ++i)
      row[i] = _mm512_maskz_loadu_epi16(i < count ? mask : 0, m.x + (i < count ? (first + i) * m.inputs + input : 0));
    transpose(row);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * 64, _mm512_xor_si512(row[i], higher));
  }
}

void INSTRUCTION_SET::multiply(const Matmul& m, const void* packed, int64_t first_output, int64_t last_output,
                               int64_t first_block, int64_t last_block, int64_t next_output) {
  const FlushDenormals flush;
  multiply_any(m, packed, {first_output, last_output, next_output}, {first_block, last_block});
}

}  // namespace pallas_kernels
