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
  static constexpr int kFewTokens = 8, kRowsPerToken = 1;
  using Sum = __m512;
  static Sum zero() { return _mm512_setzero_ps(); }
  static Sum sum_of(__m512i tile) { return _mm512_castsi512_ps(tile); }
  static __m512i tile_of(Sum sum) { return _mm512_castps_si512(sum); }
  static Sum add(Sum sum, __m512i x, __m512i w) { return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w); }
};

// Four bytes. Those of x are 128 higher (Matmul::x_is_higher), as the instruction wants one operand unsigned: sums exceed
// what they should be by 128 times the sum of a row of w.
struct Int8 {
  static constexpr int kFewTokens = 4, kRowsPerToken = 2;
  using Sum = __m512i;
  static Sum zero() { return _mm512_setzero_si512(); }
  static Sum sum_of(__m512i tile) { return tile; }
  static __m512i tile_of(Sum sum) { return sum; }
  static Sum add(Sum sum, __m512i x, __m512i w) { return _mm512_dpbusd_epi32(sum, x, w); }
  static Sum add_excess(Sum sum, __m512i w) { return add(sum, _mm512_set1_epi32(kFourHigher), w); }
};

template <typename Numbers>
constexpr bool kExceeds = std::is_same_v<Numbers, Int8>;

constexpr int64_t kSliceSteps = 18;  // two panels of it stay in the first-level cache

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
  [[maybe_unused]] __m512i excess[kPanels] = {};
  for (int p = 0; p < kPanels; ++p) {
    if (add) {
      for (int i = 0; i < 16; ++i) tile[i] = _mm512_load_si512(sums + p * 256 + i * 16);
      transpose(tile);
    }
    for (int r = 0; r < kRows; ++r) sum[p][r] = add ? Numbers::sum_of(tile[row_at(r)]) : Numbers::zero();
  }
  for (int64_t s = 0; s < steps; ++s) {
    const char* x = tokens + s * kStepBytes;
    for (int p = 0; p < kPanels; ++p) {
      const char* w = rows.tile(p, s);
      load_rows(tile, w, rows.row_bytes);
      transpose(tile);
      for (int k = 0; k < 16; ++k) {
        if constexpr (kExceeds<Numbers>) excess[p] = Numbers::add_excess(excess[p], tile[k]);
        for (int r = 0; r < kRows; ++r)
          sum[p][r] = Numbers::add(sum[p][r], _mm512_set1_epi32(number_at(x + k * 64 + row_at(r) * 4)), tile[k]);
      }
      ahead.step();
    }
  }
  for (int p = 0; p < kPanels; ++p) {
    for (int i = 0; i < 16; ++i) tile[i] = _mm512_setzero_si512();
    for (int r = 0; r < kRows; ++r) {
      tile[row_at(r)] = Numbers::tile_of(sum[p][r]);
      if constexpr (kExceeds<Numbers>) tile[row_at(r)] = _mm512_sub_epi32(tile[row_at(r)], excess[p]);
    }
    transpose(tile);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(sums + p * 256 + i * 16, tile[i]);
  }
}

// By how much the sums of some rows of w are too large.
template <typename Numbers, int kOutputs>
inline void sum_excess(const char* w, const Rows& rows, int64_t steps, int (&excess)[kOutputs]) {
  for (int o = 0; o < kOutputs; ++o, w += rows.row_bytes) {
    __m512i sums = _mm512_setzero_si512();
    for (int64_t s = 0; s < steps; ++s) sums = Numbers::add_excess(sums, _mm512_loadu_si512(w + s * rows.step_bytes));
    excess[o] = _mm512_reduce_add_epi32(sums);
  }
}

// The products of some rows of w with some blocks of tokens, block_bytes apart, over some steps. By itself: inlined, GCC 12
// copies sums from register to register.
template <typename Numbers, int kOutputs, int kBlocks>
__attribute__((noinline)) void dot_rows(const char* w, int64_t one, int64_t step_bytes, const char* x, int64_t block_bytes,
                                        int64_t steps, bool add, float* at, Ahead* ahead) {
  const int64_t three = 3 * one, five = 5 * one, seven = 7 * one;
  typename Numbers::Sum sum[kOutputs][kBlocks];
  for (int b = 0; b < kBlocks; ++b)
    for (int o = 0; o < kOutputs; ++o)
      sum[o][b] = add ? Numbers::sum_of(_mm512_load_si512(at + b * 256 + o * 16)) : Numbers::zero();
  for (int64_t s = 0; s < steps; ++s, w += step_bytes, x += kStepBytes) {
#pragma GCC unroll 4
    for (int k = 0; k < 16; ++k) {
      __m512i pairs[kBlocks];
      for (int b = 0; b < kBlocks; ++b) pairs[b] = _mm512_load_si512(x + b * block_bytes + k * 64);
      const int64_t row_at[8] = {0, one, 2 * one, three, 4 * one, five, 2 * three, seven};
      for (int o = 0; o < kOutputs; ++o) {
        const __m512i number = _mm512_set1_epi32(number_at(w + o / 8 * 8 * one + row_at[o % 8] + k * 4));
        for (int b = 0; b < kBlocks; ++b) sum[o][b] = Numbers::add(sum[o][b], pairs[b], number);
      }
    }
    if (ahead) ahead->step();
  }
  for (int b = 0; b < kBlocks; ++b)
    for (int o = 0; o < kOutputs; ++o) _mm512_store_si512(at + b * 256 + o * 16, Numbers::tile_of(sum[o][b]));
}

// The products of some panels with some blocks of tokens, block_bytes apart, over some steps: sums, as tiles one after the
// other, are added to or begun.
template <typename Numbers, int kPanels, int kBlocks>
inline void dot(const Rows& rows, const char* tokens, int64_t block_bytes, int64_t steps, bool add, float* sums,
                Ahead& ahead) {
  constexpr int kOutputs = kBlocks == 1 ? 16 : 8;
  for (int part = 0; part < kPanels * 16 / kOutputs; ++part) {
    const int panel = part * kOutputs / 16, output = part * kOutputs % 16;
    const char* w = rows.tile(panel, 0) + output * rows.row_bytes;
    float* at = sums + panel * kBlocks * 256 + output * 16;
    dot_rows<Numbers, kOutputs, kBlocks>(w, rows.row_bytes, rows.step_bytes, tokens, block_bytes, steps, add, at,
                                         output == 0 ? &ahead : nullptr);
    if constexpr (kExceeds<Numbers>) {
      int excess[kOutputs];
      sum_excess<Numbers, kOutputs>(w, rows, steps, excess);
      for (int b = 0; b < kBlocks; ++b)
        for (int o = 0; o < kOutputs; ++o) {
          float* p = at + b * 256 + o * 16;
          _mm512_store_si512(p, _mm512_sub_epi32(_mm512_load_si512(p), _mm512_set1_epi32(excess[o])));
        }
    }
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

// Of one block, of which so many tokens count.
template <typename Numbers, int kPanels>
inline void dot_one(const Rows& rows, const char* tokens, int64_t count, int64_t steps, bool add, float* sums, Ahead& ahead) {
  if (count <= Numbers::kFewTokens) return dot_few<Numbers, kPanels>(rows, tokens, count, steps, add, sums, ahead);
  dot<Numbers, kPanels, 1>(rows, tokens, 0, steps, add, sums, ahead);
}

// The same of rows that come from memory. Those of bfloat16 come no faster, but slower, where less is computed beside it,
// and fastest one after the other.
template <typename Numbers, int kPanels>
inline void dot_streamed(const Rows& rows, const char* tokens, int64_t count, int64_t steps, float* sums, Ahead& ahead) {
  if (std::is_same_v<Numbers, BFloat16> && count <= Numbers::kFewTokens) {
    for (int p = 0; p < kPanels; ++p)
      dot_few<Numbers, 1, Numbers::kFewTokens>(rows.from(p), tokens, steps, false, sums + p * 256, ahead);
  } else {
    dot_one<Numbers, kPanels>(rows, tokens, count, steps, false, sums, ahead);
  }
}

// Rows are read where they lie, whatever the number of blocks.
constexpr int kPanelsOfOneBlock = 2;
constexpr int64_t kBlocksWorthCopying = kBlocksPerCall + 1;

// How often the products of some panels ask for what lies ahead in each step.
constexpr int64_t times_ahead(int64_t panels) { return panels; }

}  // namespace
}  // namespace pallas_kernels
