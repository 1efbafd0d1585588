// Rows of quantized weights to bfloat16, 32 numbers at a time. Included by sources named *_avx512.cpp and *_amx.cpp, and
// by nothing else.
//
// Every number is what the formats' reference makes of it: a product and a sum in float32, each rounded, and then rounded
// to bfloat16. The products of all these formats are exact in float32 (a code of at most 8 bits, a factor of at most 6 and
// a scale of 11), so that one fused operation rounds as the reference does.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "gguf.h"

namespace pallas_kernels {
namespace {

// Writes numbers 32 * first to 32 * (first + count) of a row, each 32 of them stride bytes after the ones before; asks the
// memory for the bytes that lie `ahead` bytes after those it reads. first and count are multiples of what a block holds.
using DecodeSteps = void (*)(const uint8_t* row, int64_t first, int64_t count, char* to, int64_t stride, int64_t ahead);

inline __m512 ascending() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

inline float half_at(const uint8_t* p) { return _cvtsh_ss(static_cast<uint16_t>(p[0] | p[1] << 8)); }

inline __m128i load_16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

inline __m256i load_32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

inline void ask(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }

inline __m512i to_bfloat16(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

// The first 4 bytes of up to 16 blocks.
template <int kBytes>
inline __m512i beginnings(const uint8_t* blocks, int64_t count) {
  const __m512i at = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                        _mm512_set1_epi32(kBytes));
  const __mmask16 mask = count >= 16 ? 0xffff : static_cast<__mmask16>((1u << count) - 1);
  return _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), mask, at, blocks, 1);
}

inline __m512 low_halves(__m512i pairs) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(pairs)); }

inline __m512 high_halves(__m512i pairs) { return low_halves(_mm512_srli_epi32(pairs, 16)); }

// 16 numbers as bfloat16, twice: bit 4 of an index does not matter.
inline __m512i table_of(__m512 numbers) { return to_bfloat16(numbers, numbers); }

// The codes of 16 bytes' low halves and then of their high halves, in the low 4 bits of each element.
inline __m512i indices_of(__m128i bytes) {
  const __m256i words = _mm256_cvtepu8_epi16(bytes);
  const __m512i twice = _mm512_broadcast_i64x4(words);
  return _mm512_srlv_epi16(twice, _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1));
}

template <typename Decode>
inline void in_groups(int64_t count, const Decode& decode) {
  for (int64_t done = 0; done < count; done += 16) decode(done, count - done < 16 ? count - done : 16);
}

void q4_0_steps(const uint8_t* row, int64_t first, int64_t count, char* to, int64_t stride, int64_t ahead) {
  const __m512 codes = _mm512_sub_ps(ascending(), _mm512_set1_ps(8));
  const uint8_t* block = row + first * 18;
  in_groups(count, [&](int64_t, int64_t blocks) {
    alignas(64) float scale[16];
    _mm512_store_ps(scale, low_halves(beginnings<18>(block, blocks)));
    for (int64_t i = 0; i < blocks; ++i, block += 18, to += stride) {
      const __m512i table = table_of(_mm512_mul_ps(codes, _mm512_set1_ps(scale[i])));
      ask(block + ahead);
      _mm512_storeu_si512(to, _mm512_permutexvar_epi16(indices_of(load_16(block + 2)), table));
    }
  });
}

void q4_1_steps(const uint8_t* row, int64_t first, int64_t count, char* to, int64_t stride, int64_t ahead) {
  const __m512 codes = ascending();
  const uint8_t* block = row + first * 20;
  in_groups(count, [&](int64_t, int64_t blocks) {
    alignas(64) float scale[16], minimum[16];
    const __m512i pairs = beginnings<20>(block, blocks);
    _mm512_store_ps(scale, low_halves(pairs));
    _mm512_store_ps(minimum, high_halves(pairs));
    for (int64_t i = 0; i < blocks; ++i, block += 20, to += stride) {
      const __m512i table = table_of(_mm512_fmadd_ps(codes, _mm512_set1_ps(scale[i]), _mm512_set1_ps(minimum[i])));
      ask(block + ahead);
      _mm512_storeu_si512(to, _mm512_permutexvar_epi16(indices_of(load_16(block + 4)), table));
    }
  });
}

void q8_0_steps(const uint8_t* row, int64_t first, int64_t count, char* to, int64_t stride, int64_t ahead) {
  const uint8_t* block = row + first * 34;
  in_groups(count, [&](int64_t, int64_t blocks) {
    alignas(64) float scales[16];
    _mm512_store_ps(scales, low_halves(beginnings<34>(block, blocks)));
    for (int64_t i = 0; i < blocks; ++i, block += 34, to += stride) {
      const __m512 scale = _mm512_set1_ps(scales[i]);
      const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(block + 2)));
      const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(block + 18)));
      ask(block + ahead);
      _mm512_storeu_si512(to, to_bfloat16(_mm512_mul_ps(low, scale), _mm512_mul_ps(high, scale)));
    }
  });
}

// The 6-bit factors of eight groups, of the scale and of the minimum: 12 bytes to two times eight.
inline __m512 q4_k_factors(const uint8_t* packed) {
  uint32_t a, b, c;
  __builtin_memcpy(&a, packed, 4);
  __builtin_memcpy(&b, packed + 4, 4);
  __builtin_memcpy(&c, packed + 8, 4);
  const uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x30303030;
  const __m128i bytes = _mm_setr_epi32(static_cast<int>(a & six), static_cast<int>((c & four) | ((a >> 2) & two)),
                                       static_cast<int>(b & six), static_cast<int>(((c >> 4) & four) | ((b >> 2) & two)));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

void q4_k_steps(const uint8_t* row, int64_t first, int64_t count, char* to, int64_t stride, int64_t ahead) {
  const __m512 codes = ascending();
  const uint8_t* block = row + first / 8 * 144;
  for (int64_t done = 0; done < count; done += 8, block += 144) {
    const __m512 scale = _mm512_set1_ps(half_at(block)), minimum = _mm512_set1_ps(half_at(block + 2));
    alignas(64) float factor[16];
    _mm512_store_ps(factor, _mm512_mul_ps(q4_k_factors(block + 4), _mm512_mask_blend_ps(0xff00, scale, minimum)));
    ask(block + ahead), ask(block + ahead + 64), ask(block + ahead + 128);
    for (int g = 0; g < 8; g += 2, to += 2 * stride) {
      const __m512i words = _mm512_cvtepu8_epi16(load_32(block + 16 + g * 16));  // two groups share their bytes
      const auto table = [&](int group) {
        return table_of(_mm512_fmsub_ps(codes, _mm512_set1_ps(factor[group]), _mm512_set1_ps(factor[8 + group])));
      };
      _mm512_storeu_si512(to, _mm512_permutexvar_epi16(words, table(g)));
      _mm512_storeu_si512(to + stride, _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), table(g + 1)));
    }
  }
}

void q6_k_steps(const uint8_t* row, int64_t first, int64_t count, char* to, int64_t stride, int64_t ahead) {
  const __m256i low_bits = _mm256_set1_epi8(15), two_bits = _mm256_set1_epi8(0x30), middle = _mm256_set1_epi8(32);
  const uint8_t* block = row + first / 8 * 210;
  for (int64_t done = 0; done < count; done += 8, block += 210) {
    alignas(64) float scale[16];
    _mm512_store_ps(scale, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(block + 192))),
                                         _mm512_set1_ps(half_at(block + 208))));
    for (int64_t line = 0; line < 256; line += 64) ask(block + ahead + line);
    for (int step = 0; step < 8; ++step, to += stride) {
      // 64 bytes of low bits serve four steps: two their low halves, two their high ones; so do 32 bytes of high bits.
      const int half = step / 4, part = step % 4;
      const __m256i low = load_32(block + 64 * half + 32 * (part % 2)), high = load_32(block + 128 + 32 * half);
      const __m256i shifted = _mm256_srl_epi16(low, _mm_cvtsi32_si128(part / 2 * 4));
      const __m256i top = part < 2 ? _mm256_sll_epi16(high, _mm_cvtsi32_si128(4 - 2 * part))
                                   : _mm256_srl_epi16(high, _mm_cvtsi32_si128(2 * part - 4));
      const __m256i code = _mm256_sub_epi8(
          _mm256_or_si256(_mm256_and_si256(shifted, low_bits), _mm256_and_si256(top, two_bits)), middle);
      const __m512 numbers = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(code)));
      const __m512 more = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(code, 1)));
      _mm512_storeu_si512(to, to_bfloat16(_mm512_mul_ps(numbers, _mm512_set1_ps(scale[2 * step])),
                                          _mm512_mul_ps(more, _mm512_set1_ps(scale[2 * step + 1]))));
    }
  }
}

void i8_steps(const uint8_t* row, int64_t first, int64_t count, char* to, int64_t stride, int64_t ahead) {
  const uint8_t* from = row + first * 32;
  for (int64_t i = 0; i < count; ++i, from += 32, to += stride) {
    if (i % 2 == 0) ask(from + ahead);
    _mm512_storeu_si512(to, to_bfloat16(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(from))),
                                        _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(from + 16)))));
  }
}

inline DecodeSteps decoder_of(GGUFKind kind) {
  switch (kind) {
    case GGUFKind::kQ4_0: return q4_0_steps;
    case GGUFKind::kQ4_1: return q4_1_steps;
    case GGUFKind::kQ8_0: return q8_0_steps;
    case GGUFKind::kQ4_K: return q4_k_steps;
    case GGUFKind::kQ6_K: return q6_k_steps;
    case GGUFKind::kI8: return i8_steps;
    case GGUFKind::kBF16: break;
  }
  return nullptr;
}

}  // namespace
}  // namespace pallas_kernels
