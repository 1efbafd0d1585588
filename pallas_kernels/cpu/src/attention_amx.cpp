// Attention with AMX-BF16.
#include "amx.h"
#include "attention_lanes_bfloat16.h"
#include "attention_rows_bfloat16.h"
#include "attention_tile.h"

namespace pallas_kernels {
namespace {

// Tile registers 0 to 3 hold sums of weighted values, from load_sums to store_sums; 4 and 5 scores, 6 and 7 operands.
struct TileDot {
  static constexpr bool kScoresByRow = false, kPairs = false;
  static constexpr int64_t kMostSums = 4;

  template <int kCount>
  static void scores_of(const uint16_t* const* keys, int64_t stride, const uint16_t* q, int64_t steps, float* to) {
    tile_zero<4>();
    if constexpr (kCount > 1) tile_zero<5>();
    for (int64_t step = 0; step < steps; ++step) {
      tile_load<6>(q + step * kTile, 64);
      tile_load<7>(keys[0] + 32 * step, 2 * stride);
      tile_dot_bf16<4, 7, 6>();
      if constexpr (kCount > 1) {
        tile_load<7>(keys[1] + 32 * step, 2 * stride);
        tile_dot_bf16<5, 7, 6>();
      }
    }
    tile_store<4>(to, 64);
    if constexpr (kCount > 1) tile_store<5>(to + kResult, 64);
  }

  static void scores(const uint16_t* const* keys, int64_t tiles, int64_t stride, const uint16_t* q, int64_t steps,
                     float* to) {
    for (; tiles >= 2; tiles -= 2, keys += 2, to += 2 * kResult) scores_of<2>(keys, stride, q, steps, to);
    if (tiles == 1) scores_of<1>(keys, stride, q, steps, to);
  }

  static void load_sums(const float* sums, int64_t count) {
    tile_load<0>(sums, 64);
    if (count > 1) tile_load<1>(sums + kResult, 64);
    if (count > 2) tile_load<2>(sums + 2 * kResult, 64);
    if (count > 3) tile_load<3>(sums + 3 * kResult, 64);
  }

  static void add_values(const uint16_t* values, int64_t count, const uint16_t* weights, float*) {
    tile_load<6>(weights, 64);
    tile_load<7>(values, 64);
    tile_dot_bf16<0, 7, 6>();
    if (count > 1) tile_load<7>(values + kTile, 64), tile_dot_bf16<1, 7, 6>();
    if (count > 2) tile_load<7>(values + 2 * kTile, 64), tile_dot_bf16<2, 7, 6>();
    if (count > 3) tile_load<7>(values + 3 * kTile, 64), tile_dot_bf16<3, 7, 6>();
  }

  // weights: [query, key], of 16 queries, whatever those beyond `queries` hold; values: tiles of [key, dim, 2].
  static void add_rows(const uint16_t* weights, int, const uint16_t* values, int64_t count, float*,
                       ReadAhead& ahead) {
    ahead.read(9 * count);
    tile_load<6>(weights, 64);
    tile_load<7>(values, 64);
    tile_dot_bf16<0, 6, 7>();
    if (count > 1) tile_load<7>(values + kTile, 64), tile_dot_bf16<1, 6, 7>();
    if (count > 2) tile_load<7>(values + 2 * kTile, 64), tile_dot_bf16<2, 6, 7>();
    if (count > 3) tile_load<7>(values + 3 * kTile, 64), tile_dot_bf16<3, 6, 7>();
  }

  static void store_sums(float* sums, int64_t count) {
    tile_store<0>(sums, 64);
    if (count > 1) tile_store<1>(sums + kResult, 64);
    if (count > 2) tile_store<2>(sums + 2 * kResult, 64);
    if (count > 3) tile_store<3>(sums + 3 * kResult, 64);
  }
};

}  // namespace

void attend_amx(const Attention& a, const Tile& tile, const Tile* next, void* scratch) {
  const FullTiles tiles;
  attend_tile<BFloat16Rows<TileDot>, BFloat16Lanes<TileDot>>(a, tile, next, scratch);
}

}  // namespace pallas_kernels
