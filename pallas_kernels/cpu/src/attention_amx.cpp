// Attention with AMX-BF16.
#include "amx.h"
#include "attention_tile.h"

namespace pallas_kernels {
namespace {

// Tile registers 0 to 3 hold results, 4 and 5 left operands, 6 the right one.
struct TileDot {
  template <int kCount>
  static void scores_of(const uint16_t* const* keys, int64_t stride, const uint16_t* q, int64_t steps, float* to) {
    tile_zero<0>();
    if constexpr (kCount > 1) tile_zero<1>();
    if constexpr (kCount > 2) tile_zero<2>();
    if constexpr (kCount > 3) tile_zero<3>();
    for (int64_t step = 0; step < steps; ++step) {
      tile_load<6>(q + step * kTile, 64);
      tile_load<4>(keys[0] + 32 * step, 2 * stride);
      tile_dot_bf16<0, 4, 6>();
      if constexpr (kCount > 1) {
        tile_load<5>(keys[1] + 32 * step, 2 * stride);
        tile_dot_bf16<1, 5, 6>();
      }
      if constexpr (kCount > 2) {
        tile_load<4>(keys[2] + 32 * step, 2 * stride);
        tile_dot_bf16<2, 4, 6>();
      }
      if constexpr (kCount > 3) {
        tile_load<5>(keys[3] + 32 * step, 2 * stride);
        tile_dot_bf16<3, 5, 6>();
      }
    }
    tile_store<0>(to, 64);
    if constexpr (kCount > 1) tile_store<1>(to + kResult, 64);
    if constexpr (kCount > 2) tile_store<2>(to + 2 * kResult, 64);
    if constexpr (kCount > 3) tile_store<3>(to + 3 * kResult, 64);
  }

  static void scores(const uint16_t* const* keys, int64_t tiles, int64_t stride, const uint16_t* q, int64_t steps,
                     float* to) {
    for (; tiles >= 4; tiles -= 4, keys += 4, to += 4 * kResult) scores_of<4>(keys, stride, q, steps, to);
    if (tiles == 3) scores_of<3>(keys, stride, q, steps, to);
    if (tiles == 2) scores_of<2>(keys, stride, q, steps, to);
    if (tiles == 1) scores_of<1>(keys, stride, q, steps, to);
  }

  template <int kCount>
  static void add_values_of(const uint16_t* values, int64_t tiles, const uint16_t* weights, int64_t chunks,
                            float* sums) {
    tile_load<0>(sums, 64);
    if constexpr (kCount > 1) tile_load<1>(sums + kResult, 64);
    if constexpr (kCount > 2) tile_load<2>(sums + 2 * kResult, 64);
    if constexpr (kCount > 3) tile_load<3>(sums + 3 * kResult, 64);
    for (int64_t chunk = 0; chunk < chunks; ++chunk, values += tiles * kTile) {
      tile_load<6>(weights + chunk * kTile, 64);
      tile_load<4>(values, 64);
      tile_dot_bf16<0, 4, 6>();
      if constexpr (kCount > 1) {
        tile_load<5>(values + kTile, 64);
        tile_dot_bf16<1, 5, 6>();
      }
      if constexpr (kCount > 2) {
        tile_load<4>(values + 2 * kTile, 64);
        tile_dot_bf16<2, 4, 6>();
      }
      if constexpr (kCount > 3) {
        tile_load<5>(values + 3 * kTile, 64);
        tile_dot_bf16<3, 5, 6>();
      }
    }
    tile_store<0>(sums, 64);
    if constexpr (kCount > 1) tile_store<1>(sums + kResult, 64);
    if constexpr (kCount > 2) tile_store<2>(sums + 2 * kResult, 64);
    if constexpr (kCount > 3) tile_store<3>(sums + 3 * kResult, 64);
  }

  static void add_values(const uint16_t* values, int64_t tiles, const uint16_t* weights, int64_t chunks, float* sums) {
    int64_t left = tiles;
    for (; left >= 4; left -= 4, values += 4 * kTile, sums += 4 * kResult)
      add_values_of<4>(values, tiles, weights, chunks, sums);
    if (left == 3) add_values_of<3>(values, tiles, weights, chunks, sums);
    if (left == 2) add_values_of<2>(values, tiles, weights, chunks, sums);
    if (left == 1) add_values_of<1>(values, tiles, weights, chunks, sums);
  }
};

}  // namespace

void attend_amx(const Attention& a, const Tile& tile, void* scratch) {
  const FlushDenormals flush;
  const FullTiles tiles;
  TileAttention<TileDot>(a, tile, scratch).run();
}

}  // namespace pallas_kernels
