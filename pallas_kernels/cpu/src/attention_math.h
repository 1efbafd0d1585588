// Arithmetic that the attention of a tile is made of.
// Included by one source per instruction set and kind of cache, through attention_walk.h, and by nothing else.
#pragma once

#include <cstdint>

#include "flush_denormals.h"
#include "transpose.h"
#include "vectors.h"

namespace pallas_kernels {
namespace {

constexpr float kLowest = -1e30f;               // maximum before any key; finite: a difference of two is not NaN
constexpr float kLog2e = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// 2^x, relative error below 3e-6, a thousandth of what rounding the weights takes; exactly 0 for -inf.
inline __m512 exp2(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 0x09);  // x - floor(x)
  __m512 p = _mm512_set1_ps(0x1.b7f5cep-7f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.abf8f8p-5f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ee244p-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62d6c6p-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x);
}

// tanh(x) = 1 - 2 / (e^2x + 1), absolute error below 2e-6.
inline __m512 tanh(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f), limit = _mm512_set1_ps(30.0f);
  x = _mm512_min_ps(_mm512_max_ps(x, _mm512_sub_ps(_mm512_setzero_ps(), limit)), limit);
  const __m512 e = exp2(_mm512_mul_ps(x, _mm512_set1_ps(2 * kLog2e)));
  return _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(e, one)));
}

#if defined(__AVX512F__)
// The bfloat16 pairs (x[i], y[i]).
inline __m512i round_to_pairs(__m512 x, __m512 y) {
  alignas(64) static constexpr uint16_t kPairs[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_permutexvar_epi16(_mm512_load_si512(kPairs), (__m512i)_mm512_cvtne2ps_pbh(y, x));
}
#endif

}  // namespace
}  // namespace pallas_kernels
