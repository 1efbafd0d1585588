// Products without tile registers: each element is a dot product of rows, with an accumulator of its own. Rows of w in
// blocks are decoded first, a few at a time.
#include "flush_denormals.h"
#include "gate.h"
#include "gguf_decoders.h"
#include "matmul.h"
#include "vectors.h"

#if defined(__AVX512F__)
#include "matmul_vector_dots.h"
#else
#include "matmul_fused_dots.h"
#endif

namespace pallas_kernels {
namespace {

inline void store(const Matmul& m, int64_t t, int64_t o, float value) {
  const int64_t at = t * m.outputs + o;
  if (m.y_is_float32)
    static_cast<float*>(m.y)[at] = value;
  else
    static_cast<uint16_t*>(m.y)[at] = rounded(value);
}

// The sums of high and of low bytes together, times both factors.
template <int kTokens, int kOutputs>
void int16_dots(const Matmul& m, const uint16_t* w, int64_t t, int64_t row, float (&sums)[kTokens][kOutputs]) {
  int32_t high[kTokens][kOutputs], low[kTokens][kOutputs];
  int8_dots(m, w, high_row(t), high);
  int8_dots(m, w, low_row(t), low);
  for (int r = 0; r < kTokens; ++r)
    for (int c = 0; c < kOutputs; ++c) {
      const float sum = static_cast<float>(high[r][c]) * 256 + static_cast<float>(low[r][c]);
      sums[r][c] = sum * m.scale[row + c] * m.x_scale[t + r];
    }
}

template <int kTokens, int kOutputs>
void dots(const Matmul& m, const uint16_t* w, int64_t t, int64_t row, float (&sums)[kTokens][kOutputs]) {
  if (m.kind == GGUFKind::kI8)
    int16_dots(m, w, t, row, sums);
  else
    bfloat16_dots(m, w, t, sums);
}

template <int kTokens, int kOutputs>
void block(const Matmul& m, const uint16_t* w, const uint16_t* up, int64_t t, int64_t o) {
  float sums[kTokens][kOutputs];
  dots(m, w, t, o, sums);
  if (m.gated) {
    float ups[kTokens][kOutputs];
    dots(m, up, t, m.outputs + o, ups);
    for (int r = 0; r < kTokens; ++r)
      for (int c = 0; c < kOutputs; ++c)
        sums[r][c] = _mm512_cvtss_f32(gated(m.activation, _mm512_set1_ps(sums[r][c]), _mm512_set1_ps(ups[r][c])));
  }
  for (int r = 0; r < kTokens; ++r)
    for (int c = 0; c < kOutputs; ++c) store(m, t + r, o + c, sums[r][c]);
}

// `count` rows of w from number `row` on in bfloat16: where they lie, or decoded into `scratch`.
const uint16_t* plain_rows(const Matmul& m, int64_t row, int64_t count, uint16_t* scratch) {
  const uint8_t* stored = m.w + row * m.row_bytes;
  if (is_plain(m)) return reinterpret_cast<const uint16_t*>(stored);
  decoder_of(m.kind)({stored, m.row_bytes, count}, 0, num_steps(m.inputs), reinterpret_cast<char*>(scratch),
                     {2 * m.inputs, 64}, count * m.row_bytes);
  return scratch;
}

// All tokens, several at once: of I8 a part of 8, as these lie together.
template <int kOutputs>
void rows(const Matmul& m, int64_t o, uint16_t* scratch) {
  const uint16_t* w = plain_rows(m, o, kOutputs, scratch);
  const uint16_t* up = m.gated ? plain_rows(m, m.outputs + o, kOutputs, scratch + kOutputs * m.inputs) : nullptr;
  int64_t t = 0;
  if (m.kind == GGUFKind::kI8)
    for (; t + kInt8TokensAtOnce <= m.tokens; t += kInt8TokensAtOnce) block<kInt8TokensAtOnce, kOutputs>(m, w, up, t, o);
  else
    for (; t + kTokensAtOnce <= m.tokens; t += kTokensAtOnce) block<kTokensAtOnce, kOutputs>(m, w, up, t, o);
  for (; t + 2 <= m.tokens; t += 2) block<2, kOutputs>(m, w, up, t, o);
  for (; t < m.tokens; ++t) block<1, kOutputs>(m, w, up, t, o);
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

void INSTRUCTION_SET::matmul_rows(const Matmul& m, int64_t first_output, int64_t last_output) {
  const FlushDenormals flush;
  uint16_t* scratch = is_plain(m) ? nullptr : new uint16_t[2 * kOutputsAtOnce * m.inputs];
  int64_t o = first_output;
  for (; o + kOutputsAtOnce <= last_output; o += kOutputsAtOnce) rows<kOutputsAtOnce>(m, o, scratch);
  for (; o < last_output; ++o) rows<1>(m, o, scratch);
  delete[] scratch;
}

}  // namespace pallas_kernels
