// Attention over a cache of bytes with AMX-INT8.
#include "amx.h"
#include "attention_lanes_bytes.h"
#include "attention_rows_bytes.h"
#include "attention_tile.h"

namespace pallas_kernels {
namespace {

// Tile registers 0 to 3 hold sums, 6 and 7 operands.
struct TileDot {
  // Products of bytes: up to four left operands a[i] of 16 rows, `stride` bytes apart, with one right operand, signed or
  // not; summed over `steps` of them, a_step and b_step bytes apart. Integers [operand, 16, 16].
  template <bool kSigned>
  static void share_right(const int8_t* const* a, int64_t count, int64_t stride, int64_t a_step, const int8_t* b,
                          int64_t b_step, int64_t steps, int32_t* to) {
    zero_sums();
    for (int64_t step = 0; step < steps; ++step, b += b_step) {
      const int64_t at = step * a_step;
      tile_load<6>(b, 64);
      tile_load<7>(a[0] + at, stride), dot_right<kSigned, 0>();
      if (count > 1) tile_load<7>(a[1] + at, stride), dot_right<kSigned, 1>();
      if (count > 2) tile_load<7>(a[2] + at, stride), dot_right<kSigned, 2>();
      if (count > 3) tile_load<7>(a[3] + at, stride), dot_right<kSigned, 3>();
    }
    store_sums(to, count);
  }

  template <bool kSigned, int kSums>
  static void dot_right() {
    if constexpr (kSigned)
      tile_dot_int8<kSums, 7, 6>();
    else
      tile_dot_int8_uint8<kSums, 7, 6>();
  }

  // One left operand, unsigned, of rows that lie one after the other, with four signed right ones, which do so too.
  static void share_left(const int8_t* a, int64_t a_step, const int8_t* b, int64_t b_step, int64_t steps, int32_t* to) {
    zero_sums();
    for (int64_t step = 0; step < steps; ++step, a += a_step, b += b_step) {
      tile_load<6>(a, 64);
      tile_load<7>(b, 64), tile_dot_uint8_int8<0, 6, 7>();
      tile_load<7>(b + kByteTile, 64), tile_dot_uint8_int8<1, 6, 7>();
      tile_load<7>(b + 2 * kByteTile, 64), tile_dot_uint8_int8<2, 6, 7>();
      tile_load<7>(b + 3 * kByteTile, 64), tile_dot_uint8_int8<3, 6, 7>();
    }
    store_sums(to, kMostOperands);
  }

  static void zero_sums() { tile_zero<0>(), tile_zero<1>(), tile_zero<2>(), tile_zero<3>(); }

  static void store_sums(int32_t* sums, int64_t count) {
    tile_store<0>(sums, 64);
    if (count > 1) tile_store<1>(sums + kResult, 64);
    if (count > 2) tile_store<2>(sums + 2 * kResult, 64);
    if (count > 3) tile_store<3>(sums + 3 * kResult, 64);
  }
};

}  // namespace

void attend_int8_amx(const Attention& a, const Tile& tile, const Tile* next, void* scratch) {
  const FullTiles tiles;
  attend_tile<ByteRows<TileDot>, ByteLanes<TileDot>>(a, tile, next, scratch);
}

}  // namespace pallas_kernels
