// Dot products of rows by VDPBF16PS, or of bytes by VPDPBUSD: lanes run along the inputs, each element has an accumulator
// of its own. Rows of w in blocks are decoded first, a few at a time.
#include <immintrin.h>

#include "gguf_rows.h"
#include "matmul.h"
#include "gate.h"

namespace pallas_kernels {
namespace {

inline __m512bh load(const uint16_t* p) { return (__m512bh)_mm512_loadu_si512(p); }

inline __m512bh load(const uint16_t* p, __mmask32 mask) { return (__m512bh)_mm512_maskz_loadu_epi16(mask, p); }

inline void store(const Matmul& m, int64_t t, int64_t o, float value) {
  const int64_t at = t * m.outputs + o;
  if (m.y_is_float32) {
    static_cast<float*>(m.y)[at] = value;
  } else {
    const __m128bh rounded = _mm_cvtneps_pbh(_mm_set_ss(value));
    static_cast<uint16_t*>(m.y)[at] = static_cast<uint16_t>(_mm_extract_epi16((__m128i)rounded, 0));
  }
}

// Sums of kTokens tokens with kOutputs rows, which lie at w and are rows of m.w from number `row` on.
template <int kTokens, int kOutputs>
void bfloat16_dots(const Matmul& m, const uint16_t* w, int64_t t, float (&sums)[kTokens][kOutputs]) {
  __m512 sum[kTokens][kOutputs];
  for (auto& row : sum)
    for (auto& s : row) s = _mm512_setzero_ps();
  const uint16_t* x = m.x + t * m.inputs;
  const auto step = [&](int64_t i, auto... mask) {
    __m512bh a[kOutputs];
    for (int c = 0; c < kOutputs; ++c) a[c] = load(w + c * m.inputs + i, mask...);
    for (int r = 0; r < kTokens; ++r) {
      const __m512bh b = load(x + r * m.inputs + i, mask...);
      for (int c = 0; c < kOutputs; ++c) sum[r][c] = _mm512_dpbf16_ps(sum[r][c], b, a[c]);
    }
  };
  int64_t i = 0;
  for (; i + 32 <= m.inputs; i += 32) step(i);
  if (i < m.inputs) step(i, static_cast<__mmask32>((1u << (m.inputs - i)) - 1));
  for (int r = 0; r < kTokens; ++r)
    for (int c = 0; c < kOutputs; ++c) sums[r][c] = _mm512_reduce_add_ps(sum[r][c]);
}

// Sums of kTokens rows of bytes of x, from number x_row on, with kOutputs rows of bytes. x is taken 128 higher, as the
// instruction wants one operand unsigned; what this adds is subtracted.
template <int kTokens, int kOutputs>
void int8_dots(const Matmul& m, const uint16_t* w, int64_t x_row, int32_t (&sums)[kTokens][kOutputs]) {
  const __m512i higher = _mm512_set1_epi8(static_cast<char>(128));
  __m512i sum[kTokens][kOutputs], added[kOutputs];
  for (auto& row : sum)
    for (auto& s : row) s = _mm512_setzero_si512();
  for (auto& s : added) s = _mm512_setzero_si512();
  const uint16_t* x = m.x + x_row * m.inputs;
  for (int64_t i = 0; i < m.inputs; i += 32) {
    const __mmask32 mask = m.inputs - i >= 32 ? ~__mmask32{0} : (__mmask32{1} << (m.inputs - i)) - 1;
    __m512i a[kOutputs];
    for (int c = 0; c < kOutputs; ++c) {
      a[c] = _mm512_maskz_loadu_epi16(mask, w + c * m.inputs + i);
      added[c] = _mm512_dpbusd_epi32(added[c], higher, a[c]);
    }
    for (int r = 0; r < kTokens; ++r) {
      const __m512i b = _mm512_xor_si512(_mm512_maskz_loadu_epi16(mask, x + r * m.inputs + i), higher);
      for (int c = 0; c < kOutputs; ++c) sum[r][c] = _mm512_dpbusd_epi32(sum[r][c], b, a[c]);
    }
  }
  for (int r = 0; r < kTokens; ++r)
    for (int c = 0; c < kOutputs; ++c) sums[r][c] = _mm512_reduce_add_epi32(_mm512_sub_epi32(sum[r][c], added[c]));
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

constexpr int kOutputsAtOnce = 4;

// `count` rows of w from number `row` on in bfloat16: where they lie, or decoded into `scratch`.
const uint16_t* plain_rows(const Matmul& m, int64_t row, int64_t count, uint16_t* scratch) {
  const uint8_t* stored = m.w + row * m.row_bytes;
  if (is_plain(m)) return reinterpret_cast<const uint16_t*>(stored);
  decoder_of(m.kind)({stored, m.row_bytes, count}, 0, num_steps(m.inputs), reinterpret_cast<char*>(scratch),
                     {2 * m.inputs, 64}, count * m.row_bytes);
  return scratch;
}

template <int kOutputs>
void rows(const Matmul& m, int64_t o, uint16_t* scratch) {
  const uint16_t* w = plain_rows(m, o, kOutputs, scratch);
  const uint16_t* up = m.gated ? plain_rows(m, m.outputs + o, kOutputs, scratch + kOutputs * m.inputs) : nullptr;
  int64_t t = 0;
  for (; t + 4 <= m.tokens; t += 4) block<4, kOutputs>(m, w, up, t, o);
  for (; t < m.tokens; ++t) block<1, kOutputs>(m, w, up, t, o);
}

}  // namespace

void quantize_rows_avx512(const uint16_t* x, int64_t inputs, int64_t first, int64_t last, uint8_t* codes, float* scale) {
  const auto wide = [=](int64_t at, __mmask16 mask) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, x + at)), 16));
  };
  const auto each = [=](int64_t row, const auto& visit) {
    for (int64_t i = 0; i < inputs; i += 16) {
      const __mmask16 mask = inputs - i >= 16 ? 0xffff : static_cast<__mmask16>((1u << (inputs - i)) - 1);
      visit(i, wide(row * inputs + i, mask), mask);
    }
  };
  for (int64_t row = first; row < last; ++row) {
    __m512 top = _mm512_setzero_ps(), sum = _mm512_setzero_ps();
    each(row, [&](int64_t, __m512 v, __mmask16) {
      top = _mm512_max_ps(top, _mm512_abs_ps(v));
      sum = _mm512_add_ps(sum, _mm512_sub_ps(v, v));  // no number if one of them is none, or infinite
    });
    const float largest = _mm512_reduce_max_ps(top);
    const __m512 factor = _mm512_set1_ps(largest >= 0x1p-100f ? 32512.0f / largest : 0.0f);
    uint8_t *high = codes + high_row(row) * inputs, *low = codes + low_row(row) * inputs;
    each(row, [&](int64_t i, __m512 v, __mmask16 mask) {
      const __m512i code = _mm512_cvtps_epi32(_mm512_mul_ps(v, factor));
      _mm512_mask_cvtepi32_storeu_epi8(low + i, mask, code);
      _mm512_mask_cvtepi32_storeu_epi8(high + i, mask, _mm512_srai_epi32(_mm512_add_epi32(code, _mm512_set1_epi32(128)), 8));
    });
    scale[row] = largest * (1.0f / 32512.0f) + _mm512_reduce_add_ps(sum);
  }
}

void matmul_avx512(const Matmul& m, int64_t first_output, int64_t last_output) {
  uint16_t* scratch = is_plain(m) ? nullptr : new uint16_t[2 * kOutputsAtOnce * m.inputs];
  int64_t o = first_output;
  for (; o + kOutputsAtOnce <= last_output; o += kOutputsAtOnce) rows<kOutputsAtOnce>(m, o, scratch);
  for (; o < last_output; ++o) rows<1>(m, o, scratch);
  delete[] scratch;
}

}  // namespace pallas_kernels
