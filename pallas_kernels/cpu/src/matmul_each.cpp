// Products by vectors, and what products need first: x quantized, and x in the order that they read it in.
#include "flush_denormals.h"
#include "matmul_products.h"

namespace pallas_kernels {
namespace {

// A few tokens: w streams past once, taken from where it lies. Returns the first output that is left.
template <typename Numbers, int kPanels>
int64_t stream(const Matmul& m, const char* packed, Outputs outputs, int64_t block) {
  const int64_t steps = m.inputs / kInputsPerStep, count = outputs_of(m, kPanels);
  alignas(64) float sums[kPanels * 256];
  int64_t o = outputs.first;
  for (; o + count <= outputs.last; o += count) {
    const Rows rows{reinterpret_cast<const char*>(m.w) + o * m.row_bytes, m.row_bytes, 64,
                    m.gated ? m.outputs * m.row_bytes : kPanel * m.row_bytes, 0};
    Ahead ahead = ahead_to(m, outputs.after(o, count), 0, kPanels * kPanel, steps, kPanel);
    dot_streamed<Numbers, kPanels>(rows, packed + block * steps * kStepBytes, m.not_zeros, steps, sums, ahead);
    store<kPanels, 1>(m, sums, o, block);
  }
  return o;
}

template <typename Numbers>
void multiply_plain(const Matmul& m, const char* packed, Outputs outputs, Span blocks) {
  if (m.not_zeros <= Numbers::kFewTokens && m.tokens <= tokens_per_block(m) && m.inputs % kInputsPerStep == 0) {
    outputs.first = stream<Numbers, 2>(m, packed, outputs, blocks.first);
    if (!m.gated) outputs.first = stream<Numbers, 1>(m, packed, outputs, blocks.first);
  }
  reuse_all(Copied<Numbers>(m), m, packed, outputs, blocks);
}

}  // namespace

void INSTRUCTION_SET::quantize_rows(const uint16_t* x, int64_t inputs, int64_t first, int64_t last, uint8_t* codes,
                                    float* scale) {
  const auto wide = [=](int64_t at, unsigned mask) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x + at)), 16));
  };
  const auto each = [=](int64_t row, const auto& visit) {
    for (int64_t i = 0; i < inputs; i += 16) {
      const unsigned mask = inputs - i >= 16 ? 0xffff : (1u << (inputs - i)) - 1;
      visit(i, wide(row * inputs + i, mask), mask);
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
  char* to = static_cast<char*>(packed) + block * steps * kStepBytes;
  for (int64_t s = 0; s < steps; ++s, to += kStepBytes) {
    const int64_t input = s * kInputsPerStep, left = m.inputs - input;
    const uint32_t mask = left >= 32 ? 0xffffffff : (1u << left) - 1;
    __m512i row[16];
    for (int64_t i = 0; i < 16; ++i)
      row[i] = _mm512_maskz_loadu_epi16(i < count ? mask : 0, m.x + (i < count ? (first + i) * m.inputs + input : 0));
    transpose(row);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * 64, row[i]);
  }
}

void INSTRUCTION_SET::multiply(const Matmul& m, const void* packed, int64_t first_output, int64_t last_output,
                               int64_t first_block, int64_t last_block, int64_t next_output) {
  const FlushDenormals flush;
  const Outputs outputs{first_output, last_output, next_output};
  const Span blocks{first_block, last_block};
  const char* x = static_cast<const char*>(packed);
  if (m.kind == GGUFKind::kI8)
    multiply_plain<Int8>(m, x, outputs, blocks);
  else if (is_plain(m))
    multiply_plain<BFloat16>(m, x, outputs, blocks);
  else
    reuse_all(Decoded(m), m, x, outputs, blocks);
}

}  // namespace pallas_kernels
