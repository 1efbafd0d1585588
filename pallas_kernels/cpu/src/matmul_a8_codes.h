// Rows of quantized weights to codes of 8 bits, unsigned, 16 rows at a time, and to the factors of each 32 of them.
// Included by matmul_a8_each.cpp, and by nothing else.
#pragma once

#include <algorithm>
#include <cstring>

#include "ahead.h"
#include "gguf_layout.h"
#include "gguf_numbers.h"
#include "matmul_a8.h"
#include "transpose.h"

namespace pallas_kernels {
namespace {

constexpr int64_t kA8MaxSteps = 18;  // two panels of it and as much of x stay in the first-level cache
constexpr int64_t kCodesBytes = 512;

// Some steps of 32 inputs of 16 rows. Of each step, eight rows of four codes of each row of w; then s and -kZero * s; then
// m, or the second s and -kZero times that.
enum Factor { kScale, kScaleOfZero, kOther, kOtherOfZero, kFactors };
struct Panel {
  void set(int64_t step, Factor which, __m512 factors) {
    _mm512_store_ps(factor[step][which], factors);
    if (which == kScale) _mm512_store_ps(factor[step][kScaleOfZero], _mm512_mul_ps(factors, _mm512_set1_ps(-kZero)));
  }
  void set_second(int64_t step, __m512 scales) {
    set(step, kOther, scales);
    _mm512_store_ps(factor[step][kOtherOfZero], _mm512_mul_ps(scales, _mm512_set1_ps(-kZero)));
  }

  alignas(64) char codes[kA8MaxSteps * kCodesBytes];
  alignas(64) float factor[kA8MaxSteps][kFactors][16];
};

// 16 bytes of each of 16 rows: numbers of 32 bits, one of each row in a vector.
struct Quarters {
  Quarters(const uint8_t* p, int64_t row_bytes) {
    __m512i v[4];
    for (int i = 0; i < 4; ++i) v[i] = four_rows(p + i * row_bytes, 4 * row_bytes);
    const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
    const __m512i c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    number[0] = _mm512_unpacklo_epi64(a, b);
    number[1] = _mm512_unpackhi_epi64(a, b);
    number[2] = _mm512_unpacklo_epi64(c, d);
    number[3] = _mm512_unpackhi_epi64(c, d);
  }

  static __m512i four_rows(const uint8_t* p, int64_t bytes) {
#if defined(__AVX512F__)
    const auto row = [=](int i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * bytes)); };
    const __m256i low = _mm256_inserti128_si256(_mm256_castsi128_si256(row(0)), row(1), 1);
    const __m256i high = _mm256_inserti128_si256(_mm256_castsi128_si256(row(2)), row(3), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#else
    alignas(64) char rows[64];
    for (int i = 0; i < 4; ++i) std::memcpy(rows + 16 * i, p + i * bytes, 16);
    return _mm512_load_si512(rows);
#endif
  }

  __m512i number[4];
};

inline __m512i low_nibbles_in(__m512i bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi32(0x0f0f0f0f)); }
inline __m512i high_nibbles_in(__m512i bytes) { return low_nibbles_in(_mm512_srli_epi32(bytes, 4)); }

// The float32 numbers of 16 halves, in the lower or the upper 16 bits of each.
inline __m512 halves_of(const uint32_t (&words)[16], int shift) {
#if defined(__AVX512F__)
  const __m512i bits = _mm512_srli_epi32(_mm512_load_si512(words), shift);
  return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(bits));
#else
  float to[16];
  for (int r = 0; r < 16; ++r) {
    const uint16_t half = static_cast<uint16_t>(words[r] >> shift);
    to[r] = half_at(reinterpret_cast<const uint8_t*>(&half));
  }
  return _mm512_loadu_ps(to);
#endif
}

inline uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// Numbers of 32 bits, `bytes` apart in each of 16 rows. Collected by plain moves, beside the vectors' work, and long before
// vectors read them: memory hands a vector on late when its parts were just written.
struct Words {
  Words(StoredRows rows, const uint8_t* from, int64_t bytes, int64_t count) {
    // In terms of few multiples of row_bytes, which addresses are made of: 16 would not fit in registers.
    const int64_t one = rows.row_bytes, three = 3 * one, five = 5 * one, seven = 7 * one;
    for (int64_t s = 0; s < count; ++s, from += bytes) {
      volatile uint32_t* const to = word[s];  // volatile: compilers would make vector operations of it
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const uint8_t* row = from + half * 8 * one;
        const int64_t at[8] = {0, one, 2 * one, three, 4 * one, five, 2 * three, seven};
#pragma GCC unroll 8
        for (int r = 0; r < 8; ++r) to[half * 8 + r] = word_at(row + at[r]);
      }
    }
  }
  alignas(64) uint32_t word[kA8MaxSteps][16];
};

// What rows of w to ask the memory for while others are unpacked, a few lines at each step.
class AskRows {
 public:
  // bytes: of each of `count` rows from `first` on, row_bytes apart. steps: after which all have been asked for.
  AskRows(const uint8_t* first, int64_t row_bytes, int64_t bytes, int64_t count, int64_t steps)
      : at(first), end(first + bytes), next_row(row_bytes - (bytes + 63) / 64 * 64), bytes(bytes),
        lines_per_step(((bytes + 63) / 64 * count + steps - 1) / steps) {}

  void step() {
    for (int64_t i = 0; i < lines_per_step; ++i) {
      ask(at);
      at += 64;
      if (at >= end) at += next_row, end = at + bytes;
    }
  }

 private:
  const uint8_t *at, *end;
  const int64_t next_row, bytes, lines_per_step;
};

// Writes a panel of 16 rows from step `first` on.
using Unpack = void (*)(StoredRows rows, int64_t first, int64_t steps, Panel& to, AskRows& ahead);

// Blocks of 32 numbers in kBytes, which begin with s, and m if kMinimum; then Codes.
template <int kBytes, bool kMinimum, typename Codes>
void unpack_blocks(StoredRows rows, int64_t first, int64_t steps, Panel& to, AskRows& ahead) {
  const uint8_t* from = rows.first + first * kBytes;
  const Words heads(rows, from, kBytes, steps);
  from += kMinimum ? 4 : 2;
  const Codes codes(rows, from, kBytes, steps);
  for (int64_t s = 0; s < steps; ++s, from += kBytes) {
    to.set(s, kScale, halves_of(heads.word[s], 0));
    if (kMinimum) to.set(s, kOther, halves_of(heads.word[s], 16));
    ahead.step();
    codes.unpack(s, from, to.codes + s * kCodesBytes);
  }
}

// Codes of 4 bits: 16 bytes of low nibbles, which come first, and high ones.
struct FourBits {
  FourBits(StoredRows rows, const uint8_t*, int64_t, int64_t) : row_bytes(rows.row_bytes) {}
  void unpack(int64_t, const uint8_t* block, char* to) const {
    const Quarters packed(block, row_bytes);
    for (int i = 0; i < 4; ++i) {
      _mm512_store_si512(to + i * 64, low_nibbles_in(packed.number[i]));
      _mm512_store_si512(to + (4 + i) * 64, high_nibbles_in(packed.number[i]));
    }
  }
  const int64_t row_bytes;
};

// The same after 4 bytes of fifth bits.
struct WithFifthBits {
  WithFifthBits(StoredRows rows, const uint8_t* from, int64_t bytes, int64_t count)
      : row_bytes(rows.row_bytes), fifths(rows, from, bytes, count) {}
  void unpack(int64_t s, const uint8_t* block, char* to) const {
    const __m512i fifth = _mm512_load_si512(fifths.word[s]);
    const Quarters packed(block + 4, row_bytes);
    const auto put = [&](int i, __m512i nibbles) {
      // Four bits to bit 4 of four bytes: every seventh place has one of them.
      const __m512i bits = _mm512_and_si512(_mm512_srli_epi32(fifth, 4 * i), _mm512_set1_epi32(15));
      const __m512i spread = _mm512_and_si512(_mm512_mullo_epi32(bits, _mm512_set1_epi32(0x02040810)),
                                              _mm512_set1_epi32(0x10101010));
      _mm512_store_si512(to + i * 64, _mm512_or_si512(nibbles, spread));
    };
    for (int i = 0; i < 4; ++i) {
      put(i, low_nibbles_in(packed.number[i]));
      put(4 + i, high_nibbles_in(packed.number[i]));
    }
  }
  const int64_t row_bytes;
  const Words fifths;
};

// Signed bytes.
struct EightBits {
  EightBits(StoredRows rows, const uint8_t*, int64_t, int64_t) : row_bytes(rows.row_bytes) {}
  void unpack(int64_t, const uint8_t* block, char* to) const {
    for (int half = 0; half < 2; ++half) {
      const Quarters codes(block + 16 * half, row_bytes);
      for (int i = 0; i < 4; ++i)
        _mm512_store_si512(to + (4 * half + i) * 64, _mm512_xor_si512(codes.number[i], _mm512_set1_epi32(kFourHigher)));
    }
  }
  const int64_t row_bytes;
};

// Calls factors(row, to) for 16 numbers of each row of a block, and transposes them.
template <typename Factors>
inline void factors_of(const uint8_t* block, int64_t row_bytes, __m512i (&numbers)[16], const Factors& factors) {
  for (int r = 0; r < 16; ++r) {
    alignas(64) float row[16];
    factors(block + r * row_bytes, row);
    numbers[r] = _mm512_load_si512(row);
  }
  transpose(numbers);
}

void unpack_q4_k(StoredRows rows, int64_t first, int64_t steps, Panel& to, AskRows& ahead) {
  const uint8_t* from = rows.first + first / 8 * 144;
  for (int64_t s = 0; s < steps; s += 8, from += 144) {
    for (int i = 0; i < 8; ++i) ahead.step();
    __m512i numbers[16];
    factors_of(from, rows.row_bytes, numbers, [](const uint8_t* block, float* row) {
      const float scale = half_at(block), minimum = half_at(block + 2);
      for (int g = 0; g < 8; ++g) {
        const SixBits factors = six_bits(block + 4, g);
        row[g] = static_cast<float>(factors.scale) * scale;
        row[8 + g] = -(static_cast<float>(factors.minimum) * minimum);
      }
    });
    for (int g = 0; g < 8; ++g) {
      to.set(s + g, kScale, _mm512_castsi512_ps(numbers[g]));
      to.set(s + g, kOther, _mm512_castsi512_ps(numbers[8 + g]));
    }
    for (int part = 0; part < 8; ++part) {  // 16 bytes are half of a step and of the next
      const Quarters packed(from + 16 + 16 * part, rows.row_bytes);
      char* at = to.codes + (s + part / 2 * 2) * kCodesBytes + part % 2 * 256;
      for (int i = 0; i < 4; ++i) {
        _mm512_store_si512(at + i * 64, low_nibbles_in(packed.number[i]));
        _mm512_store_si512(at + kCodesBytes + i * 64, high_nibbles_in(packed.number[i]));
      }
    }
  }
}

void unpack_q6_k(StoredRows rows, int64_t first, int64_t steps, Panel& to, AskRows& ahead) {
  const uint8_t* from = rows.first + first / 8 * 210;
  const __m512i two_bits = _mm512_set1_epi32(0x30303030);
  for (int64_t s = 0; s < steps; s += 8, from += 210) {
    for (int i = 0; i < 8; ++i) ahead.step();
    __m512i numbers[16];
    factors_of(from, rows.row_bytes, numbers, [](const uint8_t* block, float* row) {
      const float scale = half_at(block + 208);
      for (int i = 0; i < 16; ++i) row[i] = static_cast<float>(static_cast<int8_t>(block[192 + i])) * scale;
    });
    for (int i = 0; i < 8; ++i) {
      to.set(s + i, kScale, _mm512_castsi512_ps(numbers[2 * i]));
      to.set_second(s + i, _mm512_castsi512_ps(numbers[2 * i + 1]));
    }
    // 64 bytes of low bits serve four steps: two their low halves, two their high ones; so do 32 bytes of high bits.
    for (int half = 0; half < 2; ++half)
      for (int part = 0; part < 2; ++part) {
        const Quarters high(from + 128 + 32 * half + 16 * part, rows.row_bytes);
        const Quarters low(from + 64 * half + 16 * part, rows.row_bytes);
        const Quarters next(from + 64 * half + 32 + 16 * part, rows.row_bytes);
        char* at = to.codes + (s + 4 * half) * kCodesBytes + part * 256;
        for (int i = 0; i < 4; ++i, at += 64) {
          const __m512i top = high.number[i];
          const auto put = [&](int step, __m512i nibbles, __m512i bits) {
            _mm512_store_si512(at + step * kCodesBytes, _mm512_or_si512(nibbles, _mm512_and_si512(bits, two_bits)));
          };
          put(0, low_nibbles_in(low.number[i]), _mm512_slli_epi32(top, 4));
          put(1, low_nibbles_in(next.number[i]), _mm512_slli_epi32(top, 2));
          put(2, high_nibbles_in(low.number[i]), top);
          put(3, high_nibbles_in(next.number[i]), _mm512_srli_epi32(top, 2));
        }
      }
  }
}

inline Unpack unpacker_of(GGUFKind kind) {
  switch (kind) {
    case GGUFKind::kQ4_0: return unpack_blocks<18, false, FourBits>;
    case GGUFKind::kQ4_1: return unpack_blocks<20, true, FourBits>;
    case GGUFKind::kQ5_0: return unpack_blocks<22, false, WithFifthBits>;
    case GGUFKind::kQ5_1: return unpack_blocks<24, true, WithFifthBits>;
    case GGUFKind::kQ8_0: return unpack_blocks<34, false, EightBits>;
    case GGUFKind::kQ4_K: return unpack_q4_k;
    case GGUFKind::kQ6_K: return unpack_q6_k;
    case GGUFKind::kI8:
    case GGUFKind::kBF16: break;  // are no blocks
  }
  return nullptr;
}

}  // namespace
}  // namespace pallas_kernels
