// Rows of quantized weights to bfloat16, 32 numbers at a time, by AVX-512. Included by gguf_decoders.h, and by nothing
// else.
//
// Every number is what the formats' reference makes of it: a product and a sum in float32, each rounded, and then rounded
// to bfloat16. The products of all these formats are exact in float32 (a code of at most 8 bits, a factor of at most 6 and
// a scale of 11), so that one fused operation rounds as the reference does.
#pragma once

#include <cstdint>

#include "ahead.h"
#include "gguf_layout.h"
#include "gguf_numbers.h"
#include "vectors.h"

namespace pallas_kernels {
namespace {

inline __m512 ascending() { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }

inline uint32_t load_4(const uint8_t* p) {
  uint32_t bits;
  __builtin_memcpy(&bits, p, sizeof bits);
  return bits;
}

inline __m128i load_16(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }

inline __m256i load_32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }

inline __m512i to_bfloat16(__m512 low, __m512 high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

// Two tables of 16 numbers are looked up in as one of 32 (VPERMW). Of each element, the low nibble of its low byte becomes
// an index into the table kTable, or in the upper half of `words` if kHighAbove, or everywhere if kHigh, the high nibble.
enum class Nibble { kLow, kHigh, kHighAbove };

template <Nibble kNibble, int kTable>
inline __m512i indices(__m512i words) {
  if (kNibble == Nibble::kHigh) words = _mm512_srli_epi16(words, 4);
  if (kNibble == Nibble::kHighAbove)
    words = _mm512_srlv_epi16(words, _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(4), 1));
  constexpr int kAndOr = 0xea;
  return _mm512_ternarylogic_epi32(words, _mm512_set1_epi16(15), _mm512_set1_epi16(16 * kTable), kAndOr);
}

// 16 bytes in the low bytes of 16 elements, twice.
inline __m512i spread_16(const uint8_t* p) {
#ifdef __AVX512VBMI__
  alignas(64) static constexpr uint8_t kTwice[64] = {
      0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15,
      0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15};
  return _mm512_permutexvar_epi8(_mm512_load_si512(kTwice), _mm512_castsi128_si512(load_16(p)));
#else
  return _mm512_broadcast_i64x4(_mm256_cvtepu8_epi16(load_16(p)));
#endif
}

// The numbers of two times 32 codes, each 16 bytes: low nibbles, then high ones.
struct Two {
  __m512i first, second;
};

inline Two look_up(__m512 table, __m512 second_table, const uint8_t* codes, const uint8_t* second_codes) {
  const __m512i both = to_bfloat16(table, second_table);
  return {_mm512_permutexvar_epi16(indices<Nibble::kHighAbove, 0>(spread_16(codes)), both),
          _mm512_permutexvar_epi16(indices<Nibble::kHighAbove, 1>(spread_16(second_codes)), both)};
}

// The two halves at the beginning of each of 16 blocks, in float32.
struct Heads {
  float first[16], second[16];
};

// Decodes blocks of 32 numbers in kBytes, two at a time: pair(block, second, head, i, j) gives those of both as bfloat16,
// their halves being numbers i and j of a head. All heads of 16 steps of all rows are collected first, by plain moves, and
// converted 16 at a time: the vector units are what limits decoding.
template <int kBytes, typename Pair>
inline void decode_blocks(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead,
                          const Pair& pair) {
  alignas(64) volatile uint32_t pairs[16][16];  // volatile: compilers would make the plain moves vector operations again
  alignas(64) Heads heads[16];
  for (int64_t done = 0; done < steps; done += 16, to += 16 * layout.step_bytes) {
    const int64_t count = steps - done < 16 ? steps - done : 16;
    const uint8_t* row = rows.first + (first + done) * kBytes;
    for (int64_t r = 0; r < rows.count; ++r)
      for (int64_t i = 0; i < count; ++i)
        pairs[r][i] = load_4(row + r * rows.row_bytes + i * kBytes);
    for (int64_t r = 0; r < rows.count; ++r) {
      const __m512i words = _mm512_load_si512(const_cast<const uint32_t*>(pairs[r]));
      const auto halves = [](__m512i low) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(low)); };
      _mm512_store_ps(heads[r].first, halves(words));
      _mm512_store_ps(heads[r].second, halves(_mm512_srli_epi32(words, 16)));
    }
    for (int64_t r = 0; r < rows.count; ++r) {
      const uint8_t* block = row + r * rows.row_bytes;
      char* at = to + r * layout.row_bytes;
      int64_t i = 0;
#pragma GCC unroll 2
      for (; i + 2 <= count; i += 2, block += 2 * kBytes, at += 2 * layout.step_bytes) {
        const Two numbers = pair(block, block + kBytes, heads[r], i, i + 1);
        ask(block + ahead);
        _mm512_storeu_si512(at, numbers.first);
        _mm512_storeu_si512(at + layout.step_bytes, numbers.second);
      }
      if (i < count) _mm512_storeu_si512(at, pair(block, block, heads[r], i, i).first);
    }
  }
}

void decode_q4_0(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead) {
  const __m512 codes = _mm512_sub_ps(ascending(), _mm512_set1_ps(8));
  decode_blocks<18>(rows, first, steps, to, layout, ahead,
                    [codes](const uint8_t* block, const uint8_t* second, const Heads& head, int64_t i, int64_t j) {
    const auto table = [&](int64_t at) { return _mm512_mul_ps(codes, _mm512_set1_ps(head.first[at])); };
    return look_up(table(i), table(j), block + 2, second + 2);
  });
}

void decode_q4_1(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead) {
  const __m512 codes = ascending();
  decode_blocks<20>(rows, first, steps, to, layout, ahead,
                    [codes](const uint8_t* block, const uint8_t* second, const Heads& head, int64_t i, int64_t j) {
    const auto table = [&](int64_t at) {
      return _mm512_fmadd_ps(codes, _mm512_set1_ps(head.first[at]), _mm512_set1_ps(head.second[at]));
    };
    return look_up(table(i), table(j), block + 4, second + 4);
  });
}

// The numbers that 32 codes of 5 bits stand for, which are 4 bytes of fifth bits, then 16 of low nibbles and high ones.
inline __m512i look_up_32(__m512 low_numbers, __m512 high_numbers, const uint8_t* codes) {
  const __m512i index = indices<Nibble::kHighAbove, 0>(spread_16(codes + 4));
  const __m512i whole = _mm512_mask_add_epi16(index, load_4(codes), index, _mm512_set1_epi16(16));
  return _mm512_permutexvar_epi16(whole, to_bfloat16(low_numbers, high_numbers));
}

void decode_q5_0(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead) {
  const __m512 low = _mm512_sub_ps(ascending(), _mm512_set1_ps(16)), high = ascending();
  decode_blocks<22>(rows, first, steps, to, layout, ahead,
                    [low, high](const uint8_t* block, const uint8_t* second, const Heads& head, int64_t i, int64_t j) {
    const auto numbers = [&](const uint8_t* codes, int64_t at) {
      const __m512 scale = _mm512_set1_ps(head.first[at]);
      return look_up_32(_mm512_mul_ps(low, scale), _mm512_mul_ps(high, scale), codes);
    };
    return Two{numbers(block + 2, i), numbers(second + 2, j)};
  });
}

void decode_q5_1(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead) {
  const __m512 low = ascending(), high = _mm512_add_ps(ascending(), _mm512_set1_ps(16));
  decode_blocks<24>(rows, first, steps, to, layout, ahead,
                    [low, high](const uint8_t* block, const uint8_t* second, const Heads& head, int64_t i, int64_t j) {
    const auto numbers = [&](const uint8_t* codes, int64_t at) {
      const __m512 scale = _mm512_set1_ps(head.first[at]), minimum = _mm512_set1_ps(head.second[at]);
      return look_up_32(_mm512_fmadd_ps(low, scale, minimum), _mm512_fmadd_ps(high, scale, minimum), codes);
    };
    return Two{numbers(block + 4, i), numbers(second + 4, j)};
  });
}

void decode_q8_0(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead) {
  decode_blocks<34>(rows, first, steps, to, layout, ahead,
                    [](const uint8_t* block, const uint8_t* second, const Heads& head, int64_t i, int64_t j) {
    const auto numbers = [&](const uint8_t* codes, int64_t at) {
      const __m512 scale = _mm512_set1_ps(head.first[at]);
      return to_bfloat16(_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(codes))), scale),
                         _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(codes + 16))), scale));
    };
    return Two{numbers(block + 2, i), numbers(second + 2, j)};
  });
}

// The 6-bit factors of eight groups, of the scale and of the minimum: 12 bytes to two times eight.
inline __m512 q4_k_factors(const uint8_t* packed) {
  const uint32_t a = load_4(packed), b = load_4(packed + 4), c = load_4(packed + 8);
  const uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x30303030;
  const __m128i bytes = _mm_setr_epi32(static_cast<int>(a & six), static_cast<int>((c & four) | ((a >> 2) & two)),
                                       static_cast<int>(b & six), static_cast<int>(((c >> 4) & four) | ((b >> 2) & two)));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}

// Decodes blocks of 256 numbers in kBytes, one after the other: block(from, to, step_bytes).
template <int kBytes, typename Block>
inline void decode_large_blocks(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead,
                                const Block& block) {
  for (int64_t r = 0; r < rows.count; ++r) {
    const uint8_t* from = rows.first + r * rows.row_bytes + first / 8 * kBytes;
    char* at = to + r * layout.row_bytes;
    for (int64_t done = 0; done < steps; done += 8, from += kBytes, at += 8 * layout.step_bytes) {
      for (int line = 0; line < kBytes; line += 64) ask(from + ahead + line);
      block(from, at, layout.step_bytes);
    }
  }
}

void decode_q4_k(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead) {
  const __m512 codes = ascending();
  decode_large_blocks<144>(rows, first, steps, to, layout, ahead, [codes](const uint8_t* block, char* at, int64_t next) {
    const __m512 scale = _mm512_set1_ps(half_at(block)), minimum = _mm512_set1_ps(half_at(block + 2));
    alignas(64) float factor[16];
    _mm512_store_ps(factor, _mm512_mul_ps(q4_k_factors(block + 4), _mm512_mask_blend_ps(0xff00, scale, minimum)));
    const auto table = [&](int group) {
      return _mm512_fmsub_ps(codes, _mm512_set1_ps(factor[group]), _mm512_set1_ps(factor[8 + group]));
    };
    for (int g = 0; g < 8; g += 2, at += 2 * next) {
      const __m512i words = _mm512_cvtepu8_epi16(load_32(block + 16 + g * 16));  // two groups share their bytes
      const __m512i both = to_bfloat16(table(g), table(g + 1));
      _mm512_storeu_si512(at, _mm512_permutexvar_epi16(indices<Nibble::kLow, 0>(words), both));
      _mm512_storeu_si512(at + next, _mm512_permutexvar_epi16(indices<Nibble::kHigh, 1>(words), both));
    }
  });
}

void decode_q6_k(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead) {
  const __m256i low_bits = _mm256_set1_epi8(15), two_bits = _mm256_set1_epi8(0x30), middle = _mm256_set1_epi8(32);
  decode_large_blocks<210>(rows, first, steps, to, layout, ahead, [&](const uint8_t* block, char* at, int64_t next) {
    alignas(64) float scale[16];
    _mm512_store_ps(scale, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_16(block + 192))),
                                         _mm512_set1_ps(half_at(block + 208))));
#pragma GCC unroll 8
    for (int step = 0; step < 8; ++step, at += next) {
      // 64 bytes of low bits serve four steps: two their low halves, two their high ones; so do 32 bytes of high bits.
      const int half = step / 4, part = step % 4;
      const __m256i low = load_32(block + 64 * half + 32 * (part % 2)), high = load_32(block + 128 + 32 * half);
      const __m256i shifted = part < 2 ? low : _mm256_srli_epi16(low, 4);
      const __m256i top = part < 2 ? _mm256_slli_epi16(high, 4 - 2 * part) : _mm256_srli_epi16(high, 2 * part - 4);
      const __m256i code = _mm256_sub_epi8(
          _mm256_or_si256(_mm256_and_si256(shifted, low_bits), _mm256_and_si256(top, two_bits)), middle);
      const __m512 numbers = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(code)));
      const __m512 more = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(code, 1)));
      _mm512_storeu_si512(at, to_bfloat16(_mm512_mul_ps(numbers, _mm512_set1_ps(scale[2 * step])),
                                          _mm512_mul_ps(more, _mm512_set1_ps(scale[2 * step + 1]))));
    }
  });
}

}  // namespace
}  // namespace pallas_kernels
