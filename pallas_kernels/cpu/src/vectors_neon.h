// What the compiler's own vectors of one register do not express, on Arm; and the names of x86 that kernels use beside
// those of AVX-512.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace pallas_kernels {
namespace {

using Floats = float32x4_t;
using Ints = int32x4_t;

inline Floats fused(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }
inline Floats fused_less(Floats a, Floats b, Floats c) { return vfmaq_f32(vnegq_f32(c), a, b); }
inline Floats less_fused(Floats a, Floats b, Floats c) { return vfmsq_f32(c, a, b); }
inline Floats chosen(Ints mask, Floats yes, Floats no) { return vbslq_f32(vreinterpretq_u32_s32(mask), yes, no); }
// The second of both where they do not compare.
inline Floats larger(Floats a, Floats b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline Floats smaller(Floats a, Floats b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
inline Floats rounded_down(Floats x) { return vrndmq_f32(x); }
inline Floats rounded_to_nearest(Floats x) { return vrndnq_f32(x); }
inline Ints to_nearest(Floats x) { return vcvtnq_s32_f32(x); }
inline Floats to_floats(Ints x) { return vcvtq_f32_s32(x); }
// Reads no others.
inline Floats load_chosen(Ints mask, const float* p) {
  Floats x{};
  for (int i = 0; i < 4; ++i)
    if (mask[i]) x[i] = p[i];
  return x;
}
inline unsigned signs(Ints mask) {
  const uint32x4_t bit = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(vreinterpretq_u32_s32(vshrq_n_s32(mask, 31)), bit));
}

inline Ints interleave_low_16(Ints a, Ints b) { return (Ints)vzip1q_s16((int16x8_t)a, (int16x8_t)b); }
inline Ints interleave_high_16(Ints a, Ints b) { return (Ints)vzip2q_s16((int16x8_t)a, (int16x8_t)b); }
inline Ints interleave_low_32(Ints a, Ints b) { return vzip1q_s32(a, b); }
inline Ints interleave_high_32(Ints a, Ints b) { return vzip2q_s32(a, b); }
inline Ints interleave_low_64(Ints a, Ints b) { return (Ints)vzip1q_s64((int64x2_t)a, (int64x2_t)b); }
inline Ints interleave_high_64(Ints a, Ints b) { return (Ints)vzip2q_s64((int64x2_t)a, (int64x2_t)b); }
template <int kSelection>
inline Floats shuffle(Floats a, Floats b) {
  return Floats{a[kSelection & 3], a[kSelection >> 2 & 3], b[kSelection >> 4 & 3], b[kSelection >> 6 & 3]};
}

using __m128 = float32x4_t;
using __m128i = int32x4_t;
inline __m128 lower_quarter(Floats x) { return x; }
inline __m128 upper_quarter(Floats x) { return x; }
inline __m128 from_quarters(__m128 low, __m128) { return low; }
inline __m128 _mm_load_ps(const float* p) { return vld1q_f32(p); }
inline void _mm_store_ps(float* p, __m128 x) { vst1q_f32(p, x); }
inline __m128 _mm_setzero_ps() { return __m128{}; }
inline __m128 _mm_set1_ps(float x) { return vdupq_n_f32(x); }
inline __m128 _mm_add_ps(__m128 a, __m128 b) { return vaddq_f32(a, b); }
inline __m128 _mm_sub_ps(__m128 a, __m128 b) { return vsubq_f32(a, b); }
inline __m128 _mm_mul_ps(__m128 a, __m128 b) { return vmulq_f32(a, b); }
inline __m128 _mm_max_ps(__m128 a, __m128 b) { return larger(a, b); }
inline int _mm_cvtsi128_si32(__m128i x) { return x[0]; }
inline unsigned _mm_cmp_ps_mask(__m128 a, __m128 b, int) {  // _CMP_NEQ_UQ, the only one asked for
  return signs(vreinterpretq_s32_u32(vmvnq_u32(vceqq_f32(a, b))));
}

enum { _CMP_EQ_OQ, _CMP_LT_OQ, _CMP_GT_OQ, _CMP_GE_OQ, _CMP_NEQ_UQ };
enum { _MM_FROUND_TO_NEAREST_INT, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src };
enum { _MM_HINT_T1 = 2, _MM_HINT_T0 = 3 };
inline void _mm_prefetch(const void* p, int) { __builtin_prefetch(p, 0, 2); }
using __mmask8 = uint8_t;
using __mmask32 = uint32_t;

// Bytes into elements of 16 and of 32 bits.
inline Ints widened_bytes(const int8_t* p) { return (Ints)vmovl_s8(vld1_s8(p)); }
inline Ints widened_bytes_32(const uint8_t* p) { return Ints{p[0], p[1], p[2], p[3]}; }
inline Ints widened_signed_bytes_32(const uint8_t* p) {
  const auto number = [p](int i) { return static_cast<int8_t>(p[i]); };
  return Ints{number(0), number(1), number(2), number(3)};
}
// Adds the products of both elements of 16 bits of each lane.
inline Ints add_products_16(Ints sum, Ints a, Ints b) {
  const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
  return vaddq_s32(sum, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
}

using Doubles = float64x2_t;
inline Doubles lower_doubles(Floats x) { return vcvt_f64_f32(vget_low_f32(x)); }
inline Doubles upper_doubles(Floats x) { return vcvt_high_f64_f32(x); }

inline float half_to_float(uint16_t bits) {
  __fp16 half;
  __builtin_memcpy(&half, &bits, sizeof half);
  return half;
}

// 16 bytes.
using Bytes = uint8x16_t;
inline Bytes load_bytes(const void* p) { return vld1q_u8(static_cast<const uint8_t*>(p)); }
inline void store_bytes(void* p, Bytes x) { vst1q_u8(static_cast<uint8_t*>(p), x); }
inline Bytes low_nibbles_of(Bytes x) { return vandq_u8(x, vdupq_n_u8(15)); }
inline Bytes high_nibbles_of(Bytes x) { return vshrq_n_u8(x, 4); }
inline Bytes look_up(Bytes table, Bytes index) { return vqtbl1q_u8(table, index); }
inline Bytes interleave_low_8(Bytes a, Bytes b) { return vzip1q_u8(a, b); }
inline Bytes interleave_high_8(Bytes a, Bytes b) { return vzip2q_u8(a, b); }
// Of 16 numbers of 16 bits the low bytes, and the high ones.
inline Bytes even_bytes(Bytes a, Bytes b) { return vuzp1q_u8(a, b); }
inline Bytes odd_bytes(Bytes a, Bytes b) { return vuzp2q_u8(a, b); }

// Four numbers of 16 bits into the lower halves of elements; 16 of them from there.
inline Ints widened(const uint16_t* p) { return vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p))); }
inline void narrow(const Ints (&x)[4], uint16_t* p) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vmovn_u32(vreinterpretq_u32_s32(x[i])));
}

}  // namespace
}  // namespace pallas_kernels
