// Dot products of rows by VDPBF16PS, or of bytes by VPDPBUSD, or what stands for these: lanes run along the inputs.
#pragma once

#include "matmul.h"
#include "vectors.h"

namespace pallas_kernels {
namespace {

constexpr int kTokensAtOnce = 4, kInt8TokensAtOnce = 4, kOutputsAtOnce = 4;

inline uint16_t rounded(float x) {
  return static_cast<uint16_t>(_mm256_extract_epi16((__m256i)_mm512_cvtneps_pbh(_mm512_set1_ps(x)), 0));
}

inline __m512bh load(const uint16_t* p) { return (__m512bh)_mm512_loadu_si512(p); }

inline __m512bh load(const uint16_t* p, __mmask32 mask) { return (__m512bh)_mm512_maskz_loadu_epi16(mask, p); }

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

}  // namespace
}  // namespace pallas_kernels
