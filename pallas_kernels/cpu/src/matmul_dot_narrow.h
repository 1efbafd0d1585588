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
  using Sum = Floats;
  using Number = Pair;
  static Number expand(Ints x) { return pallas_kernels::expand(x); }
  static Sum add(Sum sum, const Number& x, const Number& w) { return add_products(x, w, sum); }
};

// Four bytes, as elements of 16 bits.
struct Int8 {
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
};

constexpr int kOutputsAtOnce = 4;

// The sums of some rows of w with the first lanes of a block: kUsed parts of them.
template <typename Numbers, int kUsed>
inline void dot_lanes(const char* w, const char* x, int64_t steps, bool add, float* sums) {
  using Sum = typename Numbers::Sum;
  Sum sum[kOutputsAtOnce][kUsed] = {};
  for (int o = 0; add && o < kOutputsAtOnce; ++o) std::memcpy(sum[o], sums + o * 16, sizeof sum[o]);
  for (int64_t s = 0; s < steps; ++s, w += kStepBytes, x += kStepBytes)
    for (int k = 0; k < 16; ++k) {
      typename Numbers::Number pairs[kUsed];
      for (int p = 0; p < kUsed; ++p) {
        Ints stored;
        std::memcpy(&stored, x + k * 64 + p * kPartBytes, sizeof stored);
        pairs[p] = Numbers::expand(stored);
      }
      for (int o = 0; o < kOutputsAtOnce; ++o) {
        uint32_t pair;
        std::memcpy(&pair, w + o * 64 + k * 4, sizeof pair);
        const auto number = Numbers::expand((Ints)(pair - Unsigned32{}));
        for (int p = 0; p < kUsed; ++p) sum[o][p] = Numbers::add(sum[o][p], pairs[p], number);
      }
    }
  for (int o = 0; o < kOutputsAtOnce; ++o) std::memcpy(sums + o * 16, sum[o], sizeof sum[o]);
}

// The products of some panels, copied step by step, with some blocks of tokens, block_bytes apart, over some steps: sums,
// as tiles one after the other, are added to or begun. Of a block `count` rows count.
template <typename Numbers, int kPanels, int kBlocks>
inline void dot(const Rows& rows, const char* tokens, int64_t block_bytes, int64_t steps, bool add, float* sums, Ahead& ahead,
                int64_t count = 16) {
  for (int p = 0; p < kPanels; ++p) {
    for (int b = 0; b < kBlocks; ++b) {
      const char* x = tokens + b * block_bytes;
      for (int o = 0; o < 16; o += kOutputsAtOnce) {
        const char* w = rows.tile(p, 0) + o * 64;
        float* at = sums + (p * kBlocks + b) * 256 + o * 16;
        if (count <= kPartLanes)
          dot_lanes<Numbers, 1>(w, x, steps, add, at);
        else
          dot_lanes<Numbers, kParts>(w, x, steps, add, at);
      }
    }
    for (int64_t s = 0; s < steps; ++s) ahead.step();
  }
}

// Of one block.
template <typename Numbers, int kPanels>
inline void dot_one(const Rows& rows, const char* tokens, int64_t count, int64_t steps, bool add, float* sums, Ahead& ahead) {
  const bool all = std::is_same_v<Numbers, Int8>;  // a token's rows are not beside each other
  dot<Numbers, kPanels, 1>(rows, tokens, 0, steps, add, sums, ahead, all ? 16 : count);
}

constexpr int64_t kSliceSteps = 9;  // two panels of it stay in the first-level cache

// How often the products of some panels ask for what lies ahead in each step.
constexpr int64_t times_ahead(int64_t panels) { return panels; }

}  // namespace
}  // namespace pallas_kernels
