// Products of unpacked panels (matmul_a8_codes.h) with packed tokens (matmul_a8.h). Included by matmul_a8_each.cpp, and by
// nothing else.
#pragma once

#include <cstring>

#include "matmul_a8.h"
#include "matmul_a8_codes.h"
#include "matmul_tiles.h"

namespace pallas_kernels {
namespace {

inline float float_at(const char* p) {
  float number;
  std::memcpy(&number, p, sizeof number);
  return number;
}

// The factors of a step of 16 outputs, or of one in all lanes.
struct Factors {
  __m512 of[kFactors];
};

// What a block adds to a sum: of integers, s or both s, then d; then m and d * sum(q).
template <Form kForm>
inline __m512 add_block(__m512 sum, __m512i first, __m512i second, const Factors& w, __m512 d, __m512 d_sum) {
  sum = _mm512_fmadd_ps(_mm512_fmadd_ps(_mm512_castsi512_ps(first), w.of[kScale], w.of[kScaleOfZero]), d, sum);
  if (kForm == Form::kMinimum) return _mm512_fmadd_ps(w.of[kOther], d_sum, sum);
  if (kForm == Form::kWhole) return sum;
  return _mm512_fmadd_ps(_mm512_fmadd_ps(_mm512_castsi512_ps(second), w.of[kOther], w.of[kOtherOfZero]), d, sum);
}

// Of the first few tokens of a block: lanes are outputs. sums: a row for each token, which are added to or begun.
template <Form kForm, int kTokens>
inline void dot_few(const Panel& panel, const char* x, int64_t steps, bool add, float* sums) {
  constexpr int kHalves = kForm == Form::kTwoScales ? 2 : 1;
  __m512 sum[kTokens];
  for (int t = 0; t < kTokens; ++t) sum[t] = add ? _mm512_load_ps(sums + t * 16) : _mm512_setzero_ps();
  const char* codes = panel.codes;
  for (int64_t s = 0; s < steps; ++s, x += kA8StepBytes, codes += kCodesBytes) {
    __m512i whole[kTokens][kHalves];
    for (int t = 0; t < kTokens; ++t)
      for (int h = 0; h < kHalves; ++h)
        whole[t][h] = kForm == Form::kMinimum ? _mm512_set1_epi32(kZeroBits)
                                              : _mm512_set1_epi32(number_at(x + (h ? kSecondAt : kFirstAt) + t * 4));
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
      const __m512i four = _mm512_load_si512(codes + k * 64);
      for (int t = 0; t < kTokens; ++t) {
        __m512i& at = whole[t][k * kHalves / 8];
        at = _mm512_dpbusd_epi32(at, four, _mm512_set1_epi32(number_at(x + k * 64 + t * 4)));
      }
    }
    Factors w;
    for (int f = 0; f < kFactors; ++f) w.of[f] = _mm512_load_ps(panel.factor[s][f]);
    for (int t = 0; t < kTokens; ++t)
      sum[t] = add_block<kForm>(sum[t], whole[t][0], whole[t][kHalves - 1], w,
                                _mm512_set1_ps(float_at(x + kFactorAt + t * 4)),
                                _mm512_set1_ps(float_at(x + kFirstAt + t * 4)));
  }
  for (int t = 0; t < kTokens; ++t) _mm512_store_ps(sums + t * 16, sum[t]);
}

// Calls it for as many tokens as count, rounded up to a power of two.
constexpr int kA8FewTokens = 8;
template <Form kForm>
inline void dot_few(const Panel& panel, const char* x, int64_t count, int64_t steps, bool add, float* sums) {
  if (count <= 1) return dot_few<kForm, 1>(panel, x, steps, add, sums);
  if (count <= 2) return dot_few<kForm, 2>(panel, x, steps, add, sums);
  if (count <= 4) return dot_few<kForm, 4>(panel, x, steps, add, sums);
  dot_few<kForm, kA8FewTokens>(panel, x, steps, add, sums);
}

// Of some outputs of a panel with some blocks of tokens, block_bytes apart: lanes are tokens. sums: tiles of the blocks, a
// row for each output.
template <Form kForm, int kOutputs, int kBlocks>
__attribute__((noinline)) void dot_outputs(const Panel& panel, int output, const char* x, int64_t block_bytes, int64_t steps,
                                           bool add, float* sums) {
  constexpr int kHalves = kForm == Form::kTwoScales ? 2 : 1;
  __m512 sum[kOutputs][kBlocks];
  for (int o = 0; o < kOutputs; ++o)
    for (int b = 0; b < kBlocks; ++b)
      sum[o][b] = add ? _mm512_load_ps(sums + b * 256 + o * 16) : _mm512_setzero_ps();
  const char* codes = panel.codes + output * 4;
  for (int64_t s = 0; s < steps; ++s, x += kA8StepBytes, codes += kCodesBytes) {
    __m512i whole[kHalves][kOutputs][kBlocks];
    for (int h = 0; h < kHalves; ++h) {
      for (int b = 0; b < kBlocks; ++b) {
        const char* first = x + b * block_bytes + (h ? kSecondAt : kFirstAt);
        for (int o = 0; o < kOutputs; ++o)
          whole[h][o][b] = kForm == Form::kMinimum ? _mm512_set1_epi32(kZeroBits) : _mm512_load_si512(first);
      }
#pragma GCC unroll 8
      for (int k = h * 4; k < (kHalves == 1 ? 8 : h * 4 + 4); ++k) {
        __m512i four[kBlocks];
        for (int b = 0; b < kBlocks; ++b) four[b] = _mm512_load_si512(x + b * block_bytes + k * 64);
        for (int o = 0; o < kOutputs; ++o) {
          const __m512i code = _mm512_set1_epi32(number_at(codes + k * 64 + o * 4));
          for (int b = 0; b < kBlocks; ++b) whole[h][o][b] = _mm512_dpbusd_epi32(whole[h][o][b], code, four[b]);
        }
      }
    }
    for (int o = 0; o < kOutputs; ++o) {
      Factors w;
      for (int f = 0; f < kFactors; ++f) w.of[f] = _mm512_set1_ps(panel.factor[s][f][output + o]);
      for (int b = 0; b < kBlocks; ++b) {
        const char* factors = x + b * block_bytes;
        sum[o][b] = add_block<kForm>(sum[o][b], whole[0][o][b], whole[kHalves - 1][o][b], w,
                                     _mm512_load_ps(factors + kFactorAt), _mm512_load_ps(factors + kFirstAt));
      }
    }
  }
  for (int o = 0; o < kOutputs; ++o)
    for (int b = 0; b < kBlocks; ++b) _mm512_store_ps(sums + b * 256 + o * 16, sum[o][b]);
}

template <Form kForm, int kBlocks>
inline void dot(const Panel& panel, const char* x, int64_t block_bytes, int64_t steps, bool add, float* sums) {
  constexpr int kOutputs = kBlocks == 1 ? 8 : 4;
  for (int output = 0; output < 16; output += kOutputs)
    dot_outputs<kForm, kOutputs, kBlocks>(panel, output, x, block_bytes, steps, add, sums + output * 16);
}

}  // namespace
}  // namespace pallas_kernels
