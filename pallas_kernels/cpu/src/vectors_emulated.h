// Vectors of 512 bits as two or four registers, and what the kernels do with them. Each function computes, to the bit,
// what the intrinsic of its name does, with denormals flushed to zero; where less is promised, it says so. Masks are kept
// as vectors, and turn into bits where they are used as numbers.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include "vectors_avx2.h"
#else
#include "vectors_neon.h"
#endif

// Some compilers have macros by these names.
#undef _mm512_cmp_ps_mask
#undef _mm512_extractf32x8_ps
#undef _mm512_fpclass_ps_mask
#undef _mm512_getexp_ps
#undef _mm512_getmant_ps
#undef _mm512_insertf32x4
#undef _mm512_reduce_ps
#undef _mm512_rol_epi32
#undef _mm512_roundscale_ps
#undef _mm512_setr_epi32
#undef _mm512_shuffle_f32x4
#undef _mm512_shuffle_i32x4
#undef _mm512_shuffle_ps
#undef _mm512_slli_epi32
#undef _mm512_srai_epi32
#undef _mm512_srli_epi32

namespace pallas_kernels {
namespace {

constexpr int kPartBytes = sizeof(Floats), kPartLanes = kPartBytes / 4, kParts = 16 / kPartLanes;

typedef int32_t Signed32 __attribute__((vector_size(kPartBytes)));
typedef uint32_t Unsigned32 __attribute__((vector_size(kPartBytes)));
typedef int64_t Signed64 __attribute__((vector_size(kPartBytes)));

struct __m512 {
  Floats part[kParts];
};
struct __m512i {
  Ints part[kParts];
  __m512i() = default;
  template <typename... Parts>
  explicit __m512i(Ints first, Parts... others) : part{first, others...} {}
};

// Calls op for each part of the operands.
template <typename Vector, typename Op, typename... In>
inline __attribute__((always_inline)) Vector each(const Op& op, const In&... in) {
  if constexpr (kParts == 2)
    return Vector{op(in.part[0]...), op(in.part[1]...)};
  else
    return Vector{op(in.part[0]...), op(in.part[1]...), op(in.part[2]...), op(in.part[3]...)};
}

// The same with the number of a part.
template <typename Vector, typename Op>
inline __attribute__((always_inline)) Vector each_number(const Op& op) {
  if constexpr (kParts == 2)
    return Vector{op(0), op(1)};
  else
    return Vector{op(0), op(1), op(2), op(3)};
}

inline Ints of_lanes(int first) {
  Signed32 lanes;
  for (int i = 0; i < kPartLanes; ++i) lanes[i] = first + i;
  return (Ints)lanes;
}

struct __mmask16 {
  Ints part[kParts];

  __mmask16() = default;
  template <typename... Parts>
  explicit __mmask16(Ints first, Parts... others) : part{first, others...} {}
  __mmask16(unsigned bits) {
    *this = each_number<__mmask16>([bits](int p) {
      Unsigned32 bit;
      for (int i = 0; i < kPartLanes; ++i) bit[i] = 1u << (p * kPartLanes + i);
      return (Ints)((bit & bits) == bit);
    });
  }
  operator unsigned() const {
    unsigned bits = 0;
    for (int p = 0; p < kParts; ++p) bits |= signs(part[p]) << (p * kPartLanes);
    return bits;
  }
};

inline __mmask16 operator&(const __mmask16& a, const __mmask16& b) {
  return each<__mmask16>([](Ints x, Ints y) { return x & y; }, a, b);
}
inline __mmask16 operator|(const __mmask16& a, const __mmask16& b) {
  return each<__mmask16>([](Ints x, Ints y) { return x | y; }, a, b);
}
inline __mmask16& operator|=(__mmask16& a, const __mmask16& b) { return a = a | b; }

inline __m512 _mm512_set1_ps(float x) { return each_number<__m512>([x](int) { return x - Floats{}; }); }
inline __m512 _mm512_setzero_ps() { return each_number<__m512>([](int) { return Floats{}; }); }
inline __m512i _mm512_setzero_si512() { return each_number<__m512i>([](int) { return Ints{}; }); }
inline __m512i _mm512_set1_epi32(int x) {
  return each_number<__m512i>([x](int) { return (Ints)(x - Signed32{}); });
}
template <typename... Numbers>
inline __m512i _mm512_setr_epi32(Numbers... numbers) {
  const int32_t all[16] = {numbers...};
  __m512i result;
  std::memcpy(&result, all, sizeof all);
  return result;
}

inline __m512 _mm512_castsi512_ps(__m512i x) {
  return each<__m512>([](Ints p) { return (Floats)p; }, x);
}
inline __m512i _mm512_castps_si512(__m512 x) {
  return each<__m512i>([](Floats p) { return (Ints)p; }, x);
}

inline __m512 _mm512_loadu_ps(const void* p) {
  __m512 x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline __m512i _mm512_loadu_si512(const void* p) {
  __m512i x;
  std::memcpy(&x, p, sizeof x);
  return x;
}
inline void _mm512_storeu_ps(void* p, __m512 x) { std::memcpy(p, &x, sizeof x); }
inline void _mm512_storeu_si512(void* p, __m512i x) { std::memcpy(p, &x, sizeof x); }
inline __m512 _mm512_load_ps(const void* p) { return _mm512_loadu_ps(p); }
inline __m512i _mm512_load_si512(const void* p) { return _mm512_loadu_si512(p); }
inline void _mm512_store_ps(void* p, __m512 x) { _mm512_storeu_ps(p, x); }
inline void _mm512_store_si512(void* p, __m512i x) { _mm512_storeu_si512(p, x); }

inline __m512 _mm512_mask_loadu_ps(const __m512& others, const __mmask16& mask, const float* p) {
  return each_number<__m512>([&](int i) {
    return chosen(mask.part[i], load_chosen(mask.part[i], p + i * kPartLanes), others.part[i]);
  });
}
inline __m512 _mm512_maskz_loadu_ps(const __mmask16& mask, const float* p) {
  return _mm512_mask_loadu_ps(_mm512_setzero_ps(), mask, p);
}
// Masks of 16-bit numbers have their first bits set, up to some number.
inline __m512i _mm512_maskz_loadu_epi16(uint32_t mask, const uint16_t* p) {
  if (mask == 0xffffffff) return _mm512_loadu_si512(p);
  __m512i x = _mm512_setzero_si512();
  std::memcpy(&x, p, static_cast<size_t>(__builtin_popcount(mask)) * sizeof(uint16_t));
  return x;
}
inline void _mm512_mask_storeu_ps(float* p, unsigned mask, __m512 x) {  // the first bits
  std::memcpy(p, &x, static_cast<size_t>(__builtin_popcount(mask)) * sizeof(float));
}
inline void _mm512_mask_storeu_epi16(uint16_t* p, uint32_t mask, __m512i x) {
  if (mask == 0xffffffff) return _mm512_storeu_si512(p, x);
  std::memcpy(p, &x, static_cast<size_t>(__builtin_popcount(mask)) * sizeof(uint16_t));
}

inline __m512 _mm512_add_ps(__m512 a, __m512 b) {
  return each<__m512>([](Floats x, Floats y) { return x + y; }, a, b);
}
inline __m512 _mm512_sub_ps(__m512 a, __m512 b) {
  return each<__m512>([](Floats x, Floats y) { return x - y; }, a, b);
}
inline __m512 _mm512_mul_ps(__m512 a, __m512 b) {
  return each<__m512>([](Floats x, Floats y) { return x * y; }, a, b);
}
inline __m512 _mm512_div_ps(__m512 a, __m512 b) {
  return each<__m512>([](Floats x, Floats y) { return x / y; }, a, b);
}
inline __m512 _mm512_max_ps(__m512 a, __m512 b) { return each<__m512>(larger, a, b); }
inline __m512 _mm512_min_ps(__m512 a, __m512 b) { return each<__m512>(smaller, a, b); }
inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) { return each<__m512>(fused, a, b, c); }
inline __m512 _mm512_fmsub_ps(__m512 a, __m512 b, __m512 c) { return each<__m512>(fused_less, a, b, c); }
inline __m512 _mm512_fnmadd_ps(__m512 a, __m512 b, __m512 c) { return each<__m512>(less_fused, a, b, c); }
inline __m512 _mm512_abs_ps(__m512 a) {
  return each<__m512>([](Floats x) { return (Floats)((Unsigned32)x & 0x7fffffff); }, a);
}
inline __m512i _mm512_add_epi32(__m512i a, __m512i b) {
  return each<__m512i>([](Ints x, Ints y) { return (Ints)((Unsigned32)x + (Unsigned32)y); }, a, b);
}
inline __m512i _mm512_add_epi64(__m512i a, __m512i b) {
  return each<__m512i>([](Ints x, Ints y) { return (Ints)((Signed64)x + (Signed64)y); }, a, b);
}
inline __m512i _mm512_and_si512(__m512i a, __m512i b) {
  return each<__m512i>([](Ints x, Ints y) { return x & y; }, a, b);
}
inline __m512i _mm512_or_si512(__m512i a, __m512i b) {
  return each<__m512i>([](Ints x, Ints y) { return x | y; }, a, b);
}
inline __m512i _mm512_mullo_epi32(__m512i a, __m512i b) {
  return each<__m512i>([](Ints x, Ints y) { return (Ints)((Unsigned32)x * (Unsigned32)y); }, a, b);
}
// Adds the products of unsigned with signed bytes, four of them to each element.
inline __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
  typedef uint16_t Unsigned16 __attribute__((vector_size(kPartBytes)));
  typedef int16_t Signed16 __attribute__((vector_size(kPartBytes)));
  return each<__m512i>(
      [](Ints s, Ints x, Ints y) {
        s = add_products_16(s, (Ints)((Unsigned16)x & 255), (Ints)((Signed16)((Unsigned16)y << 8) >> 8));
        return add_products_16(s, (Ints)((Unsigned16)x >> 8), (Ints)((Signed16)y >> 8));
      },
      sum, a, b);
}
inline int _mm512_reduce_add_epi32(__m512i a) {
  int32_t numbers[16], sum = 0;
  std::memcpy(numbers, &a, sizeof numbers);
  for (const int32_t number : numbers) sum += number;
  return sum;
}
inline __m512i _mm512_xor_si512(__m512i a, __m512i b) {
  return each<__m512i>([](Ints x, Ints y) { return x ^ y; }, a, b);
}
inline __m512i _mm512_slli_epi32(__m512i a, int bits) {
  return each<__m512i>([=](Ints x) { return (Ints)((Unsigned32)x << bits); }, a);
}
inline __m512i _mm512_srli_epi32(__m512i a, int bits) {
  return each<__m512i>([=](Ints x) { return (Ints)((Unsigned32)x >> bits); }, a);
}
inline __m512i _mm512_srai_epi32(__m512i a, int bits) {
  return each<__m512i>([=](Ints x) { return (Ints)((Signed32)x >> bits); }, a);
}
inline __m512i _mm512_rol_epi32(__m512i a, int bits) {
  return each<__m512i>([=](Ints x) { return (Ints)((Unsigned32)x << bits | (Unsigned32)x >> (32 - bits)); }, a);
}

inline __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int comparison) {
  return each<__mmask16>(
      [comparison](Floats x, Floats y) {
        switch (comparison) {
          case _CMP_EQ_OQ: return (Ints)(x == y);
          case _CMP_LT_OQ: return (Ints)(x < y);
          case _CMP_GT_OQ: return (Ints)(x > y);
          case _CMP_GE_OQ: return (Ints)(x >= y);
          case _CMP_NEQ_UQ: return (Ints)(x != y);
        }
        __builtin_unreachable();
      },
      a, b);
}
inline __mmask16 _mm512_cmple_epi32_mask(__m512i a, __m512i b) {
  return each<__mmask16>([](Ints x, Ints y) { return (Ints)((Signed32)x <= (Signed32)y); }, a, b);
}
inline __mmask16 _mm512_cmpge_epi32_mask(__m512i a, __m512i b) { return _mm512_cmple_epi32_mask(b, a); }
inline __mmask16 _mm512_mask_cmple_epi32_mask(__mmask16 mask, __m512i a, __m512i b) {
  return mask & _mm512_cmple_epi32_mask(a, b);
}
// NaN and +inf, the only classes asked for.
inline __mmask16 _mm512_fpclass_ps_mask(__m512 a, int) {
  return each<__mmask16>([](Floats x) { return (Ints) ~(x < __builtin_inff() - Floats{}); }, a);
}

inline __m512 _mm512_mask_mov_ps(__m512 others, __mmask16 mask, __m512 a) {
  return each<__m512>([](Floats other, Ints m, Floats x) { return chosen(m, x, other); }, others, mask, a);
}
inline __m512i _mm512_mask_mov_epi32(__m512i others, __mmask16 mask, __m512i a) {
  return _mm512_castps_si512(_mm512_mask_mov_ps(_mm512_castsi512_ps(others), mask, _mm512_castsi512_ps(a)));
}
inline __m512 _mm512_mask_add_ps(__m512 others, __mmask16 mask, __m512 a, __m512 b) {
  return _mm512_mask_mov_ps(others, mask, _mm512_add_ps(a, b));
}
inline __m512 _mm512_maskz_div_ps(__mmask16 mask, __m512 a, __m512 b) {
  return _mm512_mask_mov_ps(_mm512_setzero_ps(), mask, _mm512_div_ps(a, b));
}
inline __m512i _mm512_mask_add_epi64(__m512i others, unsigned mask, __m512i a, __m512i b) {
  const __m512i sum = _mm512_add_epi64(a, b);
  return each_number<__m512i>([&](int p) {
    constexpr int kLanes64 = kPartLanes / 2;
    Signed64 bit;
    for (int i = 0; i < kLanes64; ++i) bit[i] = int64_t{1} << (p * kLanes64 + i);
    const Ints in = (Ints)((bit & static_cast<int64_t>(mask)) == bit);
    return (sum.part[p] & in) | (others.part[p] & ~in);
  });
}

// x - floor(x), rounded down, the only reduction asked for. Of a NaN 0, as _mm512_scalef_ps makes a NaN of it again.
inline __m512 _mm512_reduce_ps(__m512 a, int) {
  return each<__m512>(
      [](Floats x) {
        const Floats whole = rounded_down(x), rest = x - whole;
        const Signed32 known = (Signed32)rest & (rest == rest);  // not of infinities
        return (Floats)(known + (Signed32)(x < (Floats)known + whole));
      },
      a);
}
inline __m512 _mm512_roundscale_ps(__m512 a, int) { return each<__m512>(rounded_to_nearest, a); }

// a * 2^floor(b), in two steps of which at most the last one leaves the range of floats.
inline __m512 _mm512_scalef_ps(__m512 a, __m512 b) {
  return each<__m512>(
      [](Floats x, Floats y) {
        const Floats limit = 252.0f - Floats{}, lowest = -252.0f - Floats{};
        const Signed32 n = (Signed32)to_nearest(larger(smaller(rounded_down(y), limit), lowest)), half = n >> 1;
        const auto power = [](Signed32 e) { return (Floats)((e + 127) << 23); };
        const Floats scaled = x * power(half) * power(n - half);
        return chosen((Ints)(y == y), scaled, y);
      },
      a, b);
}

// Of positive normal numbers.
inline __m512 _mm512_getexp_ps(__m512 a) {
  return each<__m512>([](Floats x) { return to_floats((Ints)(((Signed32)x >> 23) - 127)); }, a);
}
// The same, into [0.75, 1.5).
inline __m512 _mm512_getmant_ps(__m512 a, int, int) {
  return each<__m512>(
      [](Floats x) {
        const Signed32 bits = ((Signed32)x & 0x7fffff) | 0x3f800000;
        return (Floats)(bits - ((bits & 0x400000) << 1));
      },
      a);
}

inline __m512 _mm512_cvtepi32_ps(__m512i a) { return each<__m512>(to_floats, a); }
inline __m512i _mm512_cvtps_epi32(__m512 a) { return each<__m512i>(to_nearest, a); }
inline void _mm512_mask_cvtepi32_storeu_epi8(uint8_t* p, unsigned mask, __m512i a) {
  uint32_t numbers[16];
  std::memcpy(numbers, &a, sizeof numbers);
  for (int i = 0; i < 16; ++i)
    if (mask >> i & 1) p[i] = static_cast<uint8_t>(numbers[i]);
}
inline __m512 _mm512_cvtepu32_ps(__m512i a) {
  return each<__m512>(
      [](Ints x) {
        const Unsigned32 bits = (Unsigned32)x;
        return fused(to_floats((Ints)(bits >> 16)), 65536.0f - Floats{}, to_floats((Ints)(bits & 0xffff)));
      },
      a);
}

struct HalfFloats {
  Floats part[kParts / 2];
};
inline HalfFloats _mm512_castps512_ps256(__m512 x) {
  HalfFloats half;
  std::memcpy(&half, x.part, sizeof half);
  return half;
}
inline HalfFloats _mm512_extractf32x8_ps(__m512 x, int upper) {
  HalfFloats half;
  std::memcpy(&half, x.part + upper * (kParts / 2), sizeof half);
  return half;
}
// Of numbers below 2^51 in magnitude: a sum with 1.5 * 2^52 has them in its last bits.
inline __m512i _mm512_cvtps_epi64(HalfFloats x) {
  return each_number<__m512i>([&x](int p) {
    const Doubles magic = 0x1.8p52 - Doubles{};
    const Doubles wide = p % 2 ? upper_doubles(x.part[p / 2]) : lower_doubles(x.part[p / 2]);
    return (Ints)((Signed64)(wide + magic) - (Signed64)magic);
  });
}

// Rounded to bfloat16 in the upper half of each element. x holds no denormals: all arithmetic here flushes them.
inline Ints rounded_to_bfloat16(Floats x) {
  const Unsigned32 bits = (Unsigned32)x, rounded = bits + 0x7fff + (bits >> 16 & 1);
  return (Ints)chosen((Ints)(x == x), (Floats)rounded, (Floats)(bits | 0x400000));
}
// The bfloat16 pairs (x[i], y[i]).
inline __m512i round_to_pairs(__m512 low, __m512 high) {
  return each<__m512i>(
      [](Floats x, Floats y) {
        const Unsigned32 first = (Unsigned32)rounded_to_bfloat16(x) >> 16;
        return (Ints)(first | ((Unsigned32)rounded_to_bfloat16(y) & 0xffff0000));
      },
      low, high);
}

// 16 numbers of 16 bits.
struct Shorts {
  uint16_t number[16];
};
using __m256i = Shorts;
using __m256bh = Shorts;
inline Shorts _mm512_cvtneps_pbh(__m512 x) {
  Shorts to;
  const __m512i upper = each<__m512i>([](Floats p) { return (Ints)((Unsigned32)rounded_to_bfloat16(p) >> 16); }, x);
  narrow(upper.part, to.number);
  return to;
}
inline __m512i _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
  const Shorts both[2] = {_mm512_cvtneps_pbh(low), _mm512_cvtneps_pbh(high)};
  return _mm512_loadu_si512(both);
}
inline __m512i _mm512_cvtepu16_epi32(const Shorts& x) {
  return each_number<__m512i>([&x](int p) { return widened(x.number + p * kPartLanes); });
}
inline Shorts _mm256_maskz_loadu_epi16(unsigned mask, const uint16_t* p) {
  Shorts x{};
  if (mask == 0xffff)
    std::memcpy(&x, p, sizeof x);
  else
    std::memcpy(&x, p, static_cast<size_t>(__builtin_popcount(mask)) * sizeof(uint16_t));
  return x;
}
inline void _mm256_storeu_si256(__m256i* p, const Shorts& x) { std::memcpy(p, &x, sizeof x); }
inline void _mm256_mask_storeu_epi16(uint16_t* p, unsigned mask, const Shorts& x) {
  if (mask == 0xffff)
    std::memcpy(p, &x, sizeof x);
  else
    std::memcpy(p, &x, static_cast<size_t>(__builtin_popcount(mask)) * sizeof(uint16_t));
}

}  // namespace
}  // namespace pallas_kernels

#include "vectors_lanes.h"
