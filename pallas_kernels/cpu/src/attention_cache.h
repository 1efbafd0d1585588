// What the paged cache holds, and how keys and values of it become operands of tile products.
// Included by one source per instruction set, through attention_walk.h, and by nothing else.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "attention_math.h"

namespace pallas_kernels {
namespace {

// bfloat16: keys are operands as they lie there.
struct BFloat16Cache {
  using Number = uint16_t;
  static constexpr bool kQuantized = false;

  // 32 dims of a query or key, in the order that both have in an operand.
  static __m512i query(__m512i dims) { return dims; }
  static __m512i key(const Number* from, __mmask32 mask) { return _mm512_maskz_loadu_epi16(mask, from); }

  // Pairs of two values for 32 dims, half of them in `low`; zero where there is no value, if that can be.
  template <bool kBoth>
  static void pair(const Number* x, const Number* y, __mmask32 mask, __m512i& low, __m512i& high) {
    const auto load = [=](const Number* p) { return kBoth || p ? _mm512_maskz_loadu_epi16(mask, p) : _mm512_setzero_si512(); };
    const __m512i a = load(x), b = load(y);
    low = _mm512_unpacklo_epi16(a, b);
    high = _mm512_unpackhi_epi16(a, b);
  }

  // Which of 32 dims is number i of `low` (half 0) or `high`; the reverse; and numbers so ordered brought in order.
  static constexpr int64_t dim(int64_t half, int64_t i) { return i / 4 * 8 + 4 * half + i % 4; }
  static constexpr int64_t half(int64_t dim) { return dim / 4 % 2; }
  static constexpr int64_t place(int64_t dim) { return dim / 8 * 4 + dim % 4; }
  static void put_in_order(__m512& low, __m512& high) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    const __m512 a = low, b = high;
    low = _mm512_permutex2var_ps(a, first, b);
    high = _mm512_permutex2var_ps(a, second, b);
  }
};

// Bytes, with scales of which the walk takes care: whole numbers of eight bits are exact in bfloat16. Dims i and 16 + i
// lie side by side in queries and keys, as two numbers in float32 are halves of one vector of bfloat16 that way.
struct Int8Cache {
  using Number = int8_t;
  static constexpr bool kQuantized = true;

  static __m512i query(__m512i dims) { return pair_halves(dims); }
  static __m512i key(const Number* from, __mmask32 mask) {
    return side_by_side(widen(from, mask), widen(from + 16, mask >> 16));
  }

  template <bool kBoth>
  static void pair(const Number* x, const Number* y, __mmask32 mask, __m512i& low, __m512i& high) {
    const __mmask32 xs = kBoth || x ? mask : 0, ys = kBoth || y ? mask : 0;
    low = side_by_side(widen(x, xs), widen(y, ys));
    high = side_by_side(widen(x + 16, xs >> 16), widen(y + 16, ys >> 16));
  }

  static constexpr int64_t dim(int64_t half, int64_t i) { return 16 * half + i; }
  static constexpr int64_t half(int64_t dim) { return dim / 16; }
  static constexpr int64_t place(int64_t dim) { return dim % 16; }
  static void put_in_order(__m512&, __m512&) {}

 private:
  static __m512i widen(const Number* from, __mmask32 mask) {
    const __m128i bytes = _mm_maskz_loadu_epi8(static_cast<__mmask16>(mask), from);
    return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
  }

  static __m512i side_by_side(__m512i x, __m512i y) {
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(x, 16), y);
  }
};

}  // namespace
}  // namespace pallas_kernels
