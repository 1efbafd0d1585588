// Rows of quantized weights to bfloat16 in narrower vectors than gguf_rows.h, with the same results.
#pragma once

#include <cstring>

#include "gguf_layout.h"
#include "gguf_numbers.h"
#include "vectors.h"

namespace pallas_kernels {
namespace {

// Writes 16 numbers, or the second 16 of a step.
inline void put(char* to, int half, const __m512& numbers) {
  const Shorts rounded = _mm512_cvtneps_pbh(numbers);
  std::memcpy(to + half * 32, &rounded, sizeof rounded);
}

// The bfloat16 numbers that codes of 4 bits stand for, by their low and their high bytes.
struct Table {
  explicit Table(const __m512& numbers) {
    const Shorts rounded = _mm512_cvtneps_pbh(numbers);
    const Bytes first = load_bytes(rounded.number), second = load_bytes(rounded.number + 8);
    low = even_bytes(first, second);
    high = odd_bytes(first, second);
  }

  void put(char* to, int half, Bytes codes) const {
    const Bytes lows = look_up(low, codes), highs = look_up(high, codes);
    store_bytes(to + half * 32, interleave_low_8(lows, highs));
    store_bytes(to + half * 32 + 16, interleave_high_8(lows, highs));
  }

  Bytes low, high;
};

// 16 bytes, to shift.
typedef uint64_t Words __attribute__((vector_size(16)));
inline Words words_at(const uint8_t* p) {
  Words words;
  std::memcpy(&words, p, sizeof words);
  return words;
}

inline __m512 ascending() {
  return _mm512_cvtepi32_ps(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

// Calls block(from, to) for each block of kSteps times 32 numbers in kBytes, and asks the memory for what lies ahead.
template <int kBytes, int kSteps, typename Block>
inline void decode_blocks(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead,
                          const Block& block) {
  for (int64_t r = 0; r < rows.count; ++r, to += layout.row_bytes) {
    const uint8_t* from = rows.first + r * rows.row_bytes + first / kSteps * kBytes;
    char* at = to;
    for (int64_t done = 0; done < steps; done += kSteps, from += kBytes, at += kSteps * layout.step_bytes) {
      for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(from + ahead + line, 0, 2);
      block(from, at);
    }
  }
}

void decode_q4_0(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead) {
  decode_blocks<18, 1>(rows, first, steps, to, layout, ahead, [](const uint8_t* from, char* at) {
    const __m512 codes = _mm512_sub_ps(ascending(), _mm512_set1_ps(8));
    const Table table(_mm512_mul_ps(codes, _mm512_set1_ps(half_at(from))));
    const Bytes packed = load_bytes(from + 2);
    table.put(at, 0, low_nibbles_of(packed));
    table.put(at, 1, high_nibbles_of(packed));
  });
}

void decode_q4_1(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead) {
  decode_blocks<20, 1>(rows, first, steps, to, layout, ahead, [](const uint8_t* from, char* at) {
    const __m512 scale = _mm512_set1_ps(half_at(from)), minimum = _mm512_set1_ps(half_at(from + 2));
    const Table table(_mm512_fmadd_ps(ascending(), scale, minimum));
    const Bytes packed = load_bytes(from + 4);
    table.put(at, 0, low_nibbles_of(packed));
    table.put(at, 1, high_nibbles_of(packed));
  });
}

// Codes of 5 bits: 4 bytes of fifth bits, then 16 of low nibbles, which come first, and high ones.
struct FiveBits {
  uint8_t code[32];

  explicit FiveBits(const uint8_t* from) {
    const Words packed = words_at(from + 4), nibbles = Words{} + 0x0f0f0f0f0f0f0f0f;
    const Words low = (packed & nibbles) | fifth(from[0], from[1]), high = (packed >> 4 & nibbles) | fifth(from[2], from[3]);
    std::memcpy(code, &low, sizeof low);
    std::memcpy(code + 16, &high, sizeof high);
  }

  // 16 bits, each as bit 4 of a byte.
  static Words fifth(uint64_t first, uint64_t second) {
    const Words bits = (Words{first, second} * 0x0101010101010101) & 0x8040201008040201;
    return (bits + 0x7f7f7f7f7f7f7f7f) >> 3 & 0x1010101010101010;
  }

  __m512 half(int i) const { return _mm512_cvtepi32_ps(bytes_at(code + 16 * i)); }
};

void decode_q5_0(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead) {
  decode_blocks<22, 1>(rows, first, steps, to, layout, ahead, [](const uint8_t* from, char* at) {
    const __m512 scale = _mm512_set1_ps(half_at(from)), middle = _mm512_set1_ps(16);
    const FiveBits codes(from + 2);
    for (int half = 0; half < 2; ++half) put(at, half, _mm512_mul_ps(_mm512_sub_ps(codes.half(half), middle), scale));
  });
}

void decode_q5_1(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead) {
  decode_blocks<24, 1>(rows, first, steps, to, layout, ahead, [](const uint8_t* from, char* at) {
    const __m512 scale = _mm512_set1_ps(half_at(from)), minimum = _mm512_set1_ps(half_at(from + 2));
    const FiveBits codes(from + 4);
    for (int half = 0; half < 2; ++half) put(at, half, _mm512_fmadd_ps(codes.half(half), scale, minimum));
  });
}

void decode_q8_0(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead) {
  decode_blocks<34, 1>(rows, first, steps, to, layout, ahead, [](const uint8_t* from, char* at) {
    const __m512 scale = _mm512_set1_ps(half_at(from));
    put(at, 0, _mm512_mul_ps(signed_bytes_at(from + 2), scale));
    put(at, 1, _mm512_mul_ps(signed_bytes_at(from + 18), scale));
  });
}

void decode_q4_k(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead) {
  decode_blocks<144, 8>(rows, first, steps, to, layout, ahead, [&](const uint8_t* from, char* at) {
    const float scale = half_at(from), minimum = half_at(from + 2);
    const auto table = [=](int group) {
      const SixBits factors = six_bits(from + 4, group);
      const __m512 by = _mm512_set1_ps(static_cast<float>(factors.scale) * scale);
      return Table(_mm512_fmsub_ps(ascending(), by, _mm512_set1_ps(static_cast<float>(factors.minimum) * minimum)));
    };
    for (int group = 0; group < 8; group += 2, at += 2 * layout.step_bytes) {
      const Table low = table(group), high = table(group + 1);
      for (int half = 0; half < 2; ++half) {
        const Bytes packed = load_bytes(from + 16 + 16 * group + 16 * half);  // two groups share their bytes
        low.put(at, half, low_nibbles_of(packed));
        high.put(at + layout.step_bytes, half, high_nibbles_of(packed));
      }
    }
  });
}

void decode_q6_k(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead) {
  decode_blocks<210, 8>(rows, first, steps, to, layout, ahead, [&](const uint8_t* from, char* at) {
    const float scale = half_at(from + 208);
    for (int step = 0; step < 8; ++step, at += layout.step_bytes) {
      // 64 bytes of low bits serve four steps: two their low halves, two their high ones; so do 32 bytes of high bits.
      const int large = step / 4, part = step % 4;
      for (int half = 0; half < 2; ++half) {
        const Words low = words_at(from + 64 * large + 32 * (part % 2) + 16 * half);
        const Words high = words_at(from + 128 + 32 * large + 16 * half);
        const Words four = low >> (part < 2 ? 0 : 4) & 0x0f0f0f0f0f0f0f0f;
        const Words code = four | (high >> (2 * part) & 0x0303030303030303) << 4;
        uint8_t codes[16];
        std::memcpy(codes, &code, sizeof codes);
        const __m512 middle = _mm512_set1_ps(32);
        const float by = static_cast<float>(static_cast<int8_t>(from[192 + 2 * step + half])) * scale;
        put(at, half, _mm512_mul_ps(_mm512_sub_ps(_mm512_cvtepi32_ps(bytes_at(codes)), middle), _mm512_set1_ps(by)));
      }
    }
  });
}

}  // namespace
}  // namespace pallas_kernels
