// Products of tiles by vectors: lanes are rows of x, which each number of w multiplies. Every sum has one order, pair of
// inputs by pair of inputs. Included by matmul_reuse.h, and by nothing else.
#pragma once

#include <cstring>
#include <type_traits>

#include "matmul_tiles.h"

namespace pallas_kernels {
namespace {

// Pairs of bfloat16.
struct BFloat16 {
  static constexpr int kFewTokens = 8;
  static constexpr int kRowsPerToken = 1;
  using Sum = __m512;
  struct Excess {
    void add(__m512i) {}
    void add(const char*) {}
    Sum taken_from(Sum sum) const { return sum; }
  };
  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum sum_of(__m512i tile) { return _mm512_castsi512_ps(tile); }
  static __m512i tile_of(Sum sum) { return _mm512_castps_si512(sum); }
  static __m512i spread(int pair) { return _mm512_set1_epi32(pair); }
  static __m512i prepared(__m512i w) { return w; }
  static Sum add(Sum sum, __m512i x, __m512i w) { return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w); }
};

// Four bytes. Those of w are taken 128 higher, as the instruction wants one operand unsigned; all sums exceed what they
// should be by the same.
struct Int8 {
  static constexpr int kFewTokens = 4;
  static constexpr int kRowsPerToken = 2;
  using Sum = __m512i;
  static constexpr int kHigher = static_cast<int>(0x80808080);
  struct Excess {
    __m512i sum = _mm512_setzero_si512();
    void add(__m512i x) { sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi32(kHigher), x); }
    void add(const char* x) { add(_mm512_load_si512(x)); }
    Sum taken_from(Sum from) const { return _mm512_sub_epi32(from, sum); }
  };
  static Sum zero() { return _mm512_setzero_si512(); }
  static Sum sum_of(__m512i tile) { return tile; }
  static __m512i tile_of(Sum sum) { return sum; }
  static __m512i spread(int four) { return _mm512_set1_epi32(four ^ kHigher); }
  static __m512i prepared(__m512i w) { return _mm512_xor_si512(w, _mm512_set1_epi32(kHigher)); }
  static Sum add(Sum sum, __m512i x, __m512i w) { return _mm512_dpbusd_epi32(sum, w, x); }
};

constexpr int64_t kSliceSteps = 18;  // two panels of it stay in the first-level cache

inline int number_at(const char* p) {
  int number;
  std::memcpy(&number, p, sizeof number);
  return number;
}

// 16 rows of 64 bytes. In terms of few multiples of row_bytes, which addresses are made of: 16 would not fit in registers.
inline __attribute__((always_inline)) void load_rows(__m512i (&rows)[16], const char* p, int64_t row_bytes) {
  const int64_t three = 3 * row_bytes, five = 5 * row_bytes, seven = 7 * row_bytes;
  for (int i = 0; i < 16; i += 8, p += 8 * row_bytes) {
    const int64_t at[8] = {0, row_bytes, 2 * row_bytes, three, 4 * row_bytes, five, 2 * three, seven};
    for (int j = 0; j < 8; ++j) rows[i + j] = _mm512_loadu_si512(p + at[j]);
  }
}

// The products of some panels with the first few tokens of a block, of which no others count: here lanes are outputs, as
// there are more of these. Sums are the same to the bit.
template <typename Numbers, int kPanels, int kTokens>
inline void dot_few(const Rows& rows, const char* tokens, int64_t steps, bool add, float* sums, Ahead& ahead) {
  constexpr int kRows = kTokens * Numbers::kRowsPerToken;
  constexpr auto row_at = [](int r) { return r < kTokens ? r : static_cast<int>(kQuantizedTokens) + r - kTokens; };
  __m512i tile[16];
  typename Numbers::Sum sum[kPanels][kRows];
  typename Numbers::Excess excess;
  for (int p = 0; p < kPanels; ++p) {
    if (add) {
      for (int i = 0; i < 16; ++i) tile[i] = _mm512_load_si512(sums + p * 256 + i * 16);
      transpose(tile);
    }
    for (int r = 0; r < kRows; ++r) sum[p][r] = add ? Numbers::sum_of(tile[row_at(r)]) : Numbers::zero();
  }
  for (int64_t s = 0; s < steps; ++s) {
    const char* x = tokens + s * kStepBytes;
    for (int k = 0; k < 16; ++k) excess.add(x + k * 64);
    for (int p = 0; p < kPanels; ++p) {
      const char* w = rows.tile(p, s);
      load_rows(tile, w, rows.row_bytes);
      transpose(tile);
      for (int k = 0; k < 16; ++k) {
        const __m512i number = Numbers::prepared(tile[k]);
        for (int r = 0; r < kRows; ++r)
          sum[p][r] = Numbers::add(sum[p][r], _mm512_set1_epi32(number_at(x + k * 64 + row_at(r) * 4)), number);
      }
      ahead.step();
    }
  }
  for (int p = 0; p < kPanels; ++p) {
    for (int i = 0; i < 16; ++i) tile[i] = _mm512_setzero_si512();
    for (int r = 0; r < kRows; ++r) tile[row_at(r)] = Numbers::tile_of(sum[p][r]);
    transpose(tile);
    for (int i = 0; i < 16; ++i)
      _mm512_store_si512(sums + p * 256 + i * 16, Numbers::tile_of(excess.taken_from(Numbers::sum_of(tile[i]))));
  }
}

// The products of some panels, copied step by step, with some blocks of tokens, block_bytes apart, over some steps: sums,
// as tiles one after the other, are added to or begun.
template <typename Numbers, int kPanels, int kBlocks>
inline void dot(const Rows& rows, const char* tokens, int64_t block_bytes, int64_t steps, bool add, float* sums,
                Ahead& ahead) {
  constexpr int kOutputs = kBlocks == 1 ? 16 : 8;
  for (int part = 0; part < kPanels * 16 / kOutputs; ++part) {
    const int panel = part * kOutputs / 16, output = part * kOutputs % 16;
    const char *w = rows.tile(panel, 0) + output * 64, *x = tokens;
    float* at = sums + panel * kBlocks * 256 + output * 16;
    typename Numbers::Sum sum[kOutputs][kBlocks];
    typename Numbers::Excess excess[kBlocks];
    for (int b = 0; b < kBlocks; ++b)
      for (int o = 0; o < kOutputs; ++o)
        sum[o][b] = add ? Numbers::sum_of(_mm512_load_si512(at + b * 256 + o * 16)) : Numbers::zero();
    for (int64_t s = 0; s < steps; ++s, w += kStepBytes, x += kStepBytes) {
#pragma GCC unroll 4
      for (int k = 0; k < 16; ++k) {
        __m512i pairs[kBlocks];
        for (int b = 0; b < kBlocks; ++b) {
          pairs[b] = _mm512_load_si512(x + b * block_bytes + k * 64);
          excess[b].add(pairs[b]);
        }
        for (int o = 0; o < kOutputs; ++o) {
          const __m512i number = Numbers::spread(number_at(w + o * 64 + k * 4));
          for (int b = 0; b < kBlocks; ++b) sum[o][b] = Numbers::add(sum[o][b], pairs[b], number);
        }
      }
      if (output == 0) ahead.step();
    }
    for (int b = 0; b < kBlocks; ++b)
      for (int o = 0; o < kOutputs; ++o)
        _mm512_store_si512(at + b * 256 + o * 16, Numbers::tile_of(excess[b].taken_from(sum[o][b])));
  }
}

// Calls dot_few for as many tokens as count, rounded up to a power of two.
template <typename Numbers, int kPanels>
inline void dot_few(const Rows& rows, const char* tokens, int64_t count, int64_t steps, bool add, float* sums, Ahead& ahead) {
  if (count <= 1) return dot_few<Numbers, kPanels, 1>(rows, tokens, steps, add, sums, ahead);
  if (count <= 2) return dot_few<Numbers, kPanels, 2>(rows, tokens, steps, add, sums, ahead);
  if (count <= 4) return dot_few<Numbers, kPanels, 4>(rows, tokens, steps, add, sums, ahead);
  if constexpr (Numbers::kFewTokens > 4) dot_few<Numbers, kPanels, 8>(rows, tokens, steps, add, sums, ahead);
}

// Of rows that come from memory. Those of bfloat16 come no faster, but slower, where less is computed beside it, and
// fastest one after the other.
template <typename Numbers, int kPanels>
inline void dot_streamed(const Rows& rows, const char* tokens, int64_t count, int64_t steps, float* sums, Ahead& ahead) {
  if constexpr (std::is_same_v<Numbers, BFloat16>) {
    for (int p = 0; p < kPanels; ++p)
      dot_few<Numbers, 1, Numbers::kFewTokens>(rows.from(p), tokens, steps, false, sums + p * 256, ahead);
  } else {
    dot_few<Numbers, kPanels>(rows, tokens, count, steps, false, sums, ahead);
  }
}

// Of one block, of which so many tokens count.
template <typename Numbers, int kPanels>
inline void dot_one(const Rows& rows, const char* tokens, int64_t count, int64_t steps, bool add, float* sums, Ahead& ahead) {
  if (count <= Numbers::kFewTokens) return dot_few<Numbers, kPanels>(rows, tokens, count, steps, add, sums, ahead);
  dot<Numbers, kPanels, 1>(rows, tokens, 0, steps, add, sums, ahead);
}

// How often the products of some panels ask for what lies ahead in each step.
constexpr int64_t times_ahead(int64_t panels) { return panels; }

}  // namespace
}  // namespace pallas_kernels
