// Products of tiles by narrower vectors, with the sums of matmul_dot_vectors.h to the bit: lanes are rows of x, which each
// number of w multiplies. Included by matmul_reuse.h, and by nothing else.
#pragma once

#include <cstring>
#include <type_traits>

#include "fused.h"
#include "matmul_tiles.h"

namespace pallas_kernels {
namespace {

// Pairs of bfloat16.
struct BFloat16 {
  static constexpr int kFewTokens = 4, kRowsPerToken = 1;
  using Sum = Floats;
  using Number = Pair;
  static Number expand(Ints x) { return pallas_kernels::expand(x); }
  static Sum add(Sum sum, const Number& x, const Number& w) { return add_products(x, w, sum); }
  static Sum sum_of(Ints bits) { return (Sum)bits; }
};

// Four bytes, as elements of 16 bits.
struct Int8 {
  static constexpr int kFewTokens = 4, kRowsPerToken = 2;
  using Sum = Ints;
  struct Number {
    Ints odd, even;
  };
  typedef int16_t Signed16 __attribute__((vector_size(kPartBytes)));
  static Number expand(Ints x) {
    const Signed16 bytes = (Signed16)x;
    return {(Ints)(bytes >> 8), (Ints)((Signed16)(bytes << 8) >> 8)};
  }
  static Sum add(Sum sum, const Number& x, const Number& w) {
    return add_products_16(add_products_16(sum, x.odd, w.odd), x.even, w.even);
  }
  static Sum sum_of(Ints bits) { return bits; }
};

// The same in every lane.
template <typename Numbers>
inline typename Numbers::Number spread(const char* p) {
  uint32_t number;
  std::memcpy(&number, p, sizeof number);
  return Numbers::expand((Ints)(number - Unsigned32{}));
}

// The products of a panel with the first few tokens of a block, of which no others count: here lanes are outputs, as there
// are more of these. Sums are the same to the bit.
template <typename Numbers, int kTokens>
inline void dot_few(const Rows& rows, const char* tokens, int64_t steps, bool add, float* sums) {
  using Sum = typename Numbers::Sum;
  constexpr int kRows = kTokens * Numbers::kRowsPerToken;
  constexpr auto row_at = [](int r) { return r < kTokens ? r : static_cast<int>(kQuantizedTokens) + r - kTokens; };
  __m512i tile[16];
  Sum sum[kParts][kRows] = {};
  if (add) {
    for (int i = 0; i < 16; ++i) tile[i] = _mm512_load_si512(sums + i * 16);
    transpose(tile);
    for (int p = 0; p < kParts; ++p)
      for (int r = 0; r < kRows; ++r) sum[p][r] = Numbers::sum_of(tile[row_at(r)].part[p]);
  }
  for (int64_t s = 0; s < steps; ++s) {
    for (int i = 0; i < 16; ++i) tile[i] = _mm512_loadu_si512(rows.tile(0, s) + i * rows.row_bytes);
    transpose(tile);
    for (int p = 0; p < kParts; ++p)
      for (int k = 0; k < 16; ++k) {
        const auto number = Numbers::expand(tile[k].part[p]);
        for (int r = 0; r < kRows; ++r)
          sum[p][r] = Numbers::add(sum[p][r], spread<Numbers>(tokens + s * kStepBytes + k * 64 + row_at(r) * 4), number);
      }
  }
  for (__m512i& row : tile) row = _mm512_setzero_si512();
  for (int p = 0; p < kParts; ++p)
    for (int r = 0; r < kRows; ++r) tile[row_at(r)].part[p] = (Ints)sum[p][r];
  transpose(tile);
  for (int i = 0; i < 16; ++i) _mm512_store_si512(sums + i * 16, tile[i]);
}

// Of some panels and as many tokens as count, rounded up to a power of two.
template <typename Numbers, int kPanels>
inline void dot_few(const Rows& rows, const char* tokens, int64_t count, int64_t steps, bool add, float* sums, Ahead& ahead) {
  for (int p = 0; p < kPanels; ++p, sums += 256) {
    if (count <= 1)
      dot_few<Numbers, 1>(rows.from(p), tokens, steps, add, sums);
    else if (count <= 2)
      dot_few<Numbers, 2>(rows.from(p), tokens, steps, add, sums);
    else
      dot_few<Numbers, 4>(rows.from(p), tokens, steps, add, sums);
    for (int64_t s = 0; s < steps; ++s) ahead.step();
  }
}

constexpr int kOutputsAtOnce = 4;

// The sums of some rows of w with the first lanes of a block: kUsed parts of them.
template <typename Numbers, int kUsed>
inline void dot_lanes(const Rows& rows, const char* w, const char* x, int64_t steps, bool add, float* sums) {
  using Sum = typename Numbers::Sum;
  Sum sum[kOutputsAtOnce][kUsed] = {};
  for (int o = 0; add && o < kOutputsAtOnce; ++o) std::memcpy(sum[o], sums + o * 16, sizeof sum[o]);
  for (int64_t s = 0; s < steps; ++s, w += rows.step_bytes, x += kStepBytes)
    for (int k = 0; k < 16; ++k) {
      typename Numbers::Number pairs[kUsed];
      for (int p = 0; p < kUsed; ++p) {
        Ints stored;
        std::memcpy(&stored, x + k * 64 + p * kPartBytes, sizeof stored);
        pairs[p] = Numbers::expand(stored);
      }
      for (int o = 0; o < kOutputsAtOnce; ++o) {
        const auto number = spread<Numbers>(w + o * rows.row_bytes + k * 4);
        for (int p = 0; p < kUsed; ++p) sum[o][p] = Numbers::add(sum[o][p], pairs[p], number);
      }
    }
  for (int o = 0; o < kOutputsAtOnce; ++o) std::memcpy(sums + o * 16, sum[o], sizeof sum[o]);
}

// The products of some panels with some blocks of tokens, block_bytes apart, over some steps: sums,
// as tiles one after the other, are added to or begun. Of a block `count` rows count.
template <typename Numbers, int kPanels, int kBlocks>
inline void dot(const Rows& rows, const char* tokens, int64_t block_bytes, int64_t steps, bool add, float* sums, Ahead& ahead,
                int64_t count = 16) {
  for (int p = 0; p < kPanels; ++p) {
    for (int b = 0; b < kBlocks; ++b) {
      const char* x = tokens + b * block_bytes;
      for (int o = 0; o < 16; o += kOutputsAtOnce) {
        const char* w = rows.tile(p, 0) + o * rows.row_bytes;
        float* at = sums + (p * kBlocks + b) * 256 + o * 16;
        if (count <= kPartLanes)
          dot_lanes<Numbers, 1>(rows, w, x, steps, add, at);
        else
          dot_lanes<Numbers, kParts>(rows, w, x, steps, add, at);
      }
    }
    for (int64_t s = 0; s < steps; ++s) ahead.step();
  }
}

// Of one block.
template <typename Numbers, int kPanels>
inline void dot_one(const Rows& rows, const char* tokens, int64_t count, int64_t steps, bool add, float* sums, Ahead& ahead) {
  if (count <= Numbers::kFewTokens) return dot_few<Numbers, kPanels>(rows, tokens, count, steps, add, sums, ahead);
  const bool all = std::is_same_v<Numbers, Int8>;  // a token's rows are not beside each other
  dot<Numbers, kPanels, 1>(rows, tokens, 0, steps, add, sums, ahead, all ? 16 : count);
}

template <typename Numbers, int kPanels>
inline void dot_streamed(const Rows& rows, const char* tokens, int64_t count, int64_t steps, float* sums, Ahead& ahead) {
  dot_one<Numbers, kPanels>(rows, tokens, count, steps, false, sums, ahead);
}

// Rows are read where they lie, whatever the number of blocks.
constexpr int kPanelsOfOneBlock = 2;
constexpr int64_t kBlocksWorthCopying = kBlocksPerCall + 1;

constexpr int64_t kSliceSteps = 9;  // two panels of it stay in the first-level cache

// How often the products of some panels ask for what lies ahead in each step.
constexpr int64_t times_ahead(int64_t panels) { return panels; }

}  // namespace
}  // namespace pallas_kernels
