// Attention with AMX-BF16.
#include "attention_tile.h"

namespace pallas_kernels {
namespace {

// Tile registers hold 16 rows of 64 bytes: 0 to 3 results, 4 and 5 left operands, 6 the right one.
class Tiles {
 public:
  Tiles() {
    alignas(64) struct {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
};

struct TileDot {
  template <int kCount>
  static void scores_of(const uint16_t* const* keys, int64_t stride, const uint16_t* q, int64_t steps, float* to) {
    _tile_zero(0);
    if constexpr (kCount > 1) _tile_zero(1);
    if constexpr (kCount > 2) _tile_zero(2);
    if constexpr (kCount > 3) _tile_zero(3);
    for (int64_t step = 0; step < steps; ++step) {
      _tile_loadd(6, q + step * kTile, 64);
      _tile_loadd(4, keys[0] + 32 * step, 2 * stride);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kCount > 1) {
        _tile_loadd(5, keys[1] + 32 * step, 2 * stride);
        _tile_dpbf16ps(1, 5, 6);
      }
      if constexpr (kCount > 2) {
        _tile_loadd(4, keys[2] + 32 * step, 2 * stride);
        _tile_dpbf16ps(2, 4, 6);
      }
      if constexpr (kCount > 3) {
        _tile_loadd(5, keys[3] + 32 * step, 2 * stride);
        _tile_dpbf16ps(3, 5, 6);
      }
    }
    _tile_stored(0, to, 64);
    if constexpr (kCount > 1) _tile_stored(1, to + kResult, 64);
    if constexpr (kCount > 2) _tile_stored(2, to + 2 * kResult, 64);
    if constexpr (kCount > 3) _tile_stored(3, to + 3 * kResult, 64);
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
    _tile_loadd(0, sums, 64);
    if constexpr (kCount > 1) _tile_loadd(1, sums + kResult, 64);
    if constexpr (kCount > 2) _tile_loadd(2, sums + 2 * kResult, 64);
    if constexpr (kCount > 3) _tile_loadd(3, sums + 3 * kResult, 64);
    for (int64_t chunk = 0; chunk < chunks; ++chunk, values += tiles * kTile) {
      _tile_loadd(6, weights + chunk * kTile, 64);
      _tile_loadd(4, values, 64);
      _tile_dpbf16ps(0, 4, 6);
      if constexpr (kCount > 1) {
        _tile_loadd(5, values + kTile, 64);
        _tile_dpbf16ps(1, 5, 6);
      }
      if constexpr (kCount > 2) {
        _tile_loadd(4, values + 2 * kTile, 64);
        _tile_dpbf16ps(2, 4, 6);
      }
      if constexpr (kCount > 3) {
        _tile_loadd(5, values + 3 * kTile, 64);
        _tile_dpbf16ps(3, 5, 6);
      }
    }
    _tile_stored(0, sums, 64);
    if constexpr (kCount > 1) _tile_stored(1, sums + kResult, 64);
    if constexpr (kCount > 2) _tile_stored(2, sums + 2 * kResult, 64);
    if constexpr (kCount > 3) _tile_stored(3, sums + 3 * kResult, 64);
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
  const Tiles tiles;
  TileAttention<TileDot>(a, tile, scratch).run();
}

}  // namespace pallas_kernels
