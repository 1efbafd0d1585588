// What the sampler computes in vectors: exponentials, logarithms, Gumbel noise. Included by one source, and by nothing
// else.
#pragma once

#include <cstdint>

#include "vectors.h"

namespace pallas_kernels {
namespace {

constexpr float kLargestGumbel = 22.9f;  // above -log of the smallest uniform number, 2^-33

inline __m512 set1(float x) { return _mm512_set1_ps(x); }

// 2^40 e^x for x <= 0, relative error below 1.5e-7; 2^40 exactly for x = 0. Below e^-104 the result is that of e^-104.
inline __m512 weight_of(__m512 x) {
  x = _mm512_max_ps(x, set1(-104.0f));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, set1(1.44269504088896341f)), _MM_FROUND_TO_NEAREST_INT);
  __m512 r = _mm512_fnmadd_ps(n, set1(0x1.62e4p-1f), x);  // ln 2 in two parts, the first of few digits
  r = _mm512_fnmadd_ps(n, set1(0x1.7f7d1cp-20f), r);
  __m512 p = set1(0x1.6db4e2p30f);
  p = _mm512_fmadd_ps(p, r, set1(0x1.123be0p33f));
  p = _mm512_fmadd_ps(p, r, set1(0x1.55545ep35f));
  p = _mm512_fmadd_ps(p, r, set1(0x1.55548ep37f));
  p = _mm512_fmadd_ps(p, r, set1(0x1p39f));
  const __m512 line = _mm512_fmadd_ps(r, set1(0x1p40f), set1(0x1p40f));
  return _mm512_scalef_ps(_mm512_fmadd_ps(_mm512_mul_ps(r, r), p, line), n);
}

// log(x) for positive normal x, error below 1.5 units in the last place.
inline __m512 log(__m512 x) {
  const __m512 mantissa = _mm512_getmant_ps(x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
  const __m512 n = _mm512_sub_ps(_mm512_getexp_ps(x), _mm512_getexp_ps(mantissa));
  const __m512 f = _mm512_sub_ps(mantissa, set1(1.0f)), square = _mm512_mul_ps(f, f);
  __m512 p = set1(-0x1.714024p-5f);
  p = _mm512_fmadd_ps(p, f, set1(0x1.ac90e2p-4f));
  p = _mm512_fmadd_ps(p, f, set1(-0x1.0d8ac4p-3f));
  p = _mm512_fmadd_ps(p, f, set1(0x1.28848cp-3f));
  p = _mm512_fmadd_ps(p, f, set1(-0x1.54efd8p-3f));
  p = _mm512_fmadd_ps(p, f, set1(0x1.9969aep-3f));
  p = _mm512_fmadd_ps(p, f, set1(-0x1.00004p-2f));
  p = _mm512_fmadd_ps(p, f, set1(0x1.5555a4p-2f));
  p = _mm512_mul_ps(_mm512_mul_ps(p, f), square);
  p = _mm512_fmadd_ps(n, set1(0x1.7f7d1cp-20f), p);
  p = _mm512_fnmadd_ps(square, set1(0.5f), p);
  return _mm512_fmadd_ps(n, set1(0x1.62e4p-1f), _mm512_add_ps(f, p));
}

// Threefry-2x32 with 20 rounds (Salmon et al. 2011), the first word of the result.
struct Threefry {
  static constexpr uint32_t kParity = 0x1bd11bda;

  Threefry(uint32_t key0, uint32_t key1) : key{key0, key1, key0 ^ key1 ^ kParity} {}

  __m512i operator()(__m512i counter0, __m512i counter1, __m512i* second = nullptr) const {
    const __m512i k[3] = {set(key[0]), set(key[1]), set(key[2])};
    __m512i x = _mm512_add_epi32(counter0, k[0]), y = _mm512_add_epi32(counter1, k[1]);
    even(x, y);
    inject(x, y, k[1], k[2], 1);
    odd(x, y);
    inject(x, y, k[2], k[0], 2);
    even(x, y);
    inject(x, y, k[0], k[1], 3);
    odd(x, y);
    inject(x, y, k[1], k[2], 4);
    even(x, y);
    inject(x, y, k[2], k[0], 5);
    if (second != nullptr) *second = y;
    return x;
  }

 private:
  static __m512i set(uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); }
  template <int kBits>
  static void round(__m512i& x, __m512i& y) {
    x = _mm512_add_epi32(x, y);
    y = _mm512_xor_si512(_mm512_rol_epi32(y, kBits), x);
  }
  static void even(__m512i& x, __m512i& y) {
    round<13>(x, y);
    round<15>(x, y);
    round<26>(x, y);
    round<6>(x, y);
  }
  static void odd(__m512i& x, __m512i& y) {
    round<17>(x, y);
    round<29>(x, y);
    round<16>(x, y);
    round<24>(x, y);
  }
  static void inject(__m512i& x, __m512i& y, __m512i a, __m512i b, uint32_t group) {
    x = _mm512_add_epi32(x, a);
    y = _mm512_add_epi32(_mm512_add_epi32(y, b), set(group));
  }

  const uint32_t key[3];
};

// The noise of one row: a token's is a function of the row's words and its id.
class Gumbel {
 public:
  Gumbel(uint32_t seed_high, uint32_t seed_low, uint32_t sample_index, uint32_t position)
      : cipher_(row_key(seed_high, seed_low, sample_index, position)) {}

  // A uniform number in (0, 1) near (bits + 1/2) / 2^32.
  __m512 uniform(__m512i ids) const {
    const __m512 bits = _mm512_cvtepu32_ps(cipher_(ids, _mm512_setzero_si512()));
    return _mm512_min_ps(_mm512_mul_ps(_mm512_add_ps(bits, set1(0.5f)), set1(0x1p-32f)), set1(0x1.fffffep-1f));
  }

  // -log(-log(1 - u)), by a series where 1 - u loses digits.
  static __m512 value(__m512 u) {
    const __m512 one = set1(1.0f);
    const __mmask16 small = _mm512_cmp_ps_mask(u, set1(0x1p-10f), _CMP_LT_OQ);
    __m512 series = _mm512_fmadd_ps(u, set1(1.0f / 3), set1(0.5f));
    series = _mm512_mul_ps(u, _mm512_fmadd_ps(u, series, one));
    const __m512 exponential = negated(log(_mm512_sub_ps(one, u)));
    return negated(log(_mm512_mask_mov_ps(exponential, small, series)));
  }

  // No smaller than value(u): -log(u), rounded up to a multiple of log 2, with room for the rounding of `value`.
  static __m512 bound(__m512 u) {
    return _mm512_fnmadd_ps(_mm512_getexp_ps(u), set1(0.693147180559945309f), set1(1e-3f));
  }

 private:
  static __m512 negated(__m512 x) { return _mm512_sub_ps(_mm512_setzero_ps(), x); }
  static Threefry row_key(uint32_t seed_high, uint32_t seed_low, uint32_t sample_index, uint32_t position) {
    const auto set = [](uint32_t x) { return _mm512_set1_epi32(static_cast<int>(x)); };
    __m512i second;
    const __m512i first = Threefry(seed_high, seed_low)(set(sample_index), set(position), &second);
    return Threefry(static_cast<uint32_t>(_mm_cvtsi128_si32(_mm512_castsi512_si128(first))),
                    static_cast<uint32_t>(_mm_cvtsi128_si32(_mm512_castsi512_si128(second))));
  }

  const Threefry cipher_;
};

}  // namespace
}  // namespace pallas_kernels
