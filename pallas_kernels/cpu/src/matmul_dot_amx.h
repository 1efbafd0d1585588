// Products of tiles by AMX. Included by matmul_products.h, and by nothing else.
#pragma once

#include "amx.h"
#include "matmul_tiles.h"

namespace pallas_kernels {
namespace {

// What a tile product is of.
struct BFloat16 {
  template <int kSums, int kA, int kB>
  static void dot() {
    tile_dot_bf16<kSums, kA, kB>();
  }
};
struct Int8 {
  template <int kSums, int kA, int kB>
  static void dot() {
    tile_dot_int8<kSums, kA, kB>();
  }
};

// The products of some panels with some blocks of tokens, block_bytes apart, over some steps: four sums at most, as
// tiles one after the other, are added to or begun.
template <typename Numbers, int kPanels, int kBlocks>
inline void dot(const Rows& rows, const char* tokens, int64_t block_bytes, int64_t steps, bool add, float* sums,
                Ahead& ahead) {
  constexpr int kSums = kPanels * kBlocks;
  if (add) {
    tile_load<0>(sums, 64);
    if constexpr (kSums > 1) tile_load<1>(sums + 256, 64);
    if constexpr (kSums > 2) tile_load<2>(sums + 512, 64), tile_load<3>(sums + 768, 64);
  } else {
    tile_zero<0>();
    if constexpr (kSums > 1) tile_zero<1>();
    if constexpr (kSums > 2) tile_zero<2>(), tile_zero<3>();
  }
  for (int64_t s = 0; s < steps; ++s) {
    tile_load<6>(tokens + s * kStepBytes, 64);
    if constexpr (kBlocks > 1) tile_load<7>(tokens + block_bytes + s * kStepBytes, 64);
    tile_load<4>(rows.tile(0, s), rows.row_bytes);
    Numbers::template dot<0, 4, 6>();
    if constexpr (kBlocks > 1) Numbers::template dot<1, 4, 7>();
    if constexpr (kPanels > 1) {
      tile_load<5>(rows.tile(1, s), rows.row_bytes);
      Numbers::template dot<kBlocks, 5, 6>();
      if constexpr (kBlocks > 1) Numbers::template dot<3, 5, 7>();
    }
    if constexpr (kPanels > 2) {
      tile_load<7>(rows.tile(2, s), rows.row_bytes);
      Numbers::template dot<2, 7, 6>();
      tile_load<4>(rows.tile(3, s), rows.row_bytes);
      Numbers::template dot<3, 4, 6>();
    }
    ahead.step();
  }
  tile_store<0>(sums, 64);
  if constexpr (kSums > 1) tile_store<1>(sums + 256, 64);
  if constexpr (kSums > 2) tile_store<2>(sums + 512, 64), tile_store<3>(sums + 768, 64);
}

// Of one block, of which so many rows count.
template <typename Numbers, int kPanels>
inline void dot_one(const Rows& rows, const char* tokens, int64_t, int64_t steps, bool add, float* sums, Ahead& ahead) {
  dot<Numbers, kPanels, 1>(rows, tokens, 0, steps, add, sums, ahead);
}

template <typename Numbers, int kPanels>
inline void dot_streamed(const Rows& rows, const char* tokens, int64_t, int64_t steps, float* sums, Ahead& ahead) {
  dot<Numbers, kPanels, 1>(rows, tokens, 0, steps, false, sums, ahead);
}

// Tiles are read where they lie, of few tokens of more rows at a time; from so many blocks on, rows are copied first.
constexpr int kPanelsOfOneBlock = 4;
constexpr int64_t kBlocksWorthCopying = 8;

constexpr int64_t kSliceSteps = 9;  // two panels of it stay in the first-level cache, whatever passes beside them

// How often the products of some panels ask for what lies ahead in each step.
constexpr int64_t times_ahead(int64_t) { return 1; }

}  // namespace
}  // namespace pallas_kernels
