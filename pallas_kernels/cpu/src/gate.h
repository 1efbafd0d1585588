// The gates of gated products (Shazeer 2020). Included by sources that are compiled for one instruction set, and by
// nothing else.
#pragma once

#include "matmul.h"
#include "vectors.h"

namespace pallas_kernels {
namespace {

inline __m512 widen(__m256bh x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)x), 16)); }

// e^-x, relative error below 2e-7 where neither overflows.
inline __m512 exp_of_minus(__m512 x) {
  x = _mm512_mul_ps(x, _mm512_set1_ps(-1.44269504088896341f));
  const __m512 f = _mm512_reduce_ps(x, 0x09);  // x - floor(x)
  __m512 p = _mm512_set1_ps(0x1.e975f2p-10f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.277814p-7f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.c91cf2p-5f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ebdb56p-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62e4bap-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x);
}

// activation(gate) * up of sums that are rounded first, as separate products would be. Both activations are g times a
// sigmoid, as 1 + tanh(x) is 2 sigmoid(2 x).
inline __m512 gated(Activation activation, __m512 gate, __m512 up) {
  const __m512 g = widen(_mm512_cvtneps_pbh(gate)), u = widen(_mm512_cvtneps_pbh(up));
  __m512 x = g;
  if (activation == Activation::kGeluTanh) {
    const __m512 square = _mm512_mul_ps(g, g);
    const __m512 factor = _mm512_fmadd_ps(square, _mm512_set1_ps(0x1.2444f2p-4f), _mm512_set1_ps(0x1.988454p+0f));
    x = _mm512_mul_ps(g, factor);
  }
  return _mm512_mul_ps(_mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), exp_of_minus(x))), u);
}

}  // namespace
}  // namespace pallas_kernels
