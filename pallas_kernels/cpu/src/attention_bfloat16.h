// Keys and values in bfloat16: for a Dot that multiplies tiles of 16 x 32 by 32 x 16 numbers into 16 x 16 float32.
#pragma once

#include "attention_walk.h"

namespace pallas_kernels {
namespace {

struct BFloat16Cache {
  using Number = uint16_t;

  static __mmask32 first(int64_t dims) { return dims >= 32 ? ~__mmask32{0} : (__mmask32{1} << dims) - 1; }
  static __m512i load(const uint16_t* from, int64_t dims) { return _mm512_maskz_loadu_epi16(first(dims), from); }
};

template <class Dot, class Self>
class BFloat16Walk : public TileWalk<BFloat16Cache, Self> {
  using Walk = TileWalk<BFloat16Cache, Self>;

 public:
  using Walk::TileWalk;

  // Right operands: [head_dim / 2, query, 2], zero beyond the head dim and in unused lanes.
  void pack_queries() {
    for (int64_t t = 0; t < layout_.tiles; ++t) {
      const int used = this->lanes_of(t);
      for (int64_t step = 0; step < layout_.steps; ++step) {
        const __mmask32 mask = dims_from(step);
        __m512i rows[16];
        for (int i = 0; i < 16; ++i) rows[i] = _mm512_setzero_si512();
        for (int i = 0; i < used; ++i) {
          const int64_t lane = t * kLanes + i;
          rows[i] = _mm512_maskz_loadu_epi16(mask, this->query(lane) + 32 * step);
        }
        transpose(rows);
        uint16_t* to = this->template at<uint16_t>(layout_.q) + (t * layout_.steps + step) * kTile;
        for (int i = 0; i < 16; ++i) _mm512_store_si512(to + 32 * i, rows[i]);
      }
    }
  }

 protected:
  using Walk::a_, Walk::layout_, Walk::keys_, Walk::key_stride_;
  using Seen = typename Walk::Seen;

  // The scores of the chunks [first, end) that are seen.
  void add_scores(int64_t t, const Seen& seen, int64_t first, int64_t end, float* to) {
    const int64_t tile = this->max(seen.first_tile, first * (kChunk / kKeyTile));
    const int64_t count = this->min(seen.end_tile, end * (kChunk / kKeyTile)) - tile;
    const uint16_t* q = this->template at<uint16_t>(layout_.q) + t * layout_.steps * kTile;
    if (count <= 0) return;
    if constexpr (Self::kScoresByRow)
      Dot::row_scores(keys_ + tile, count, key_stride_, q, layout_.steps, this->lanes_of(t), to + tile * kResult,
                      this->ahead_);
    else
      Dot::scores(keys_ + tile, count, key_stride_, q, layout_.steps, to + tile * kResult);
  }

  // Operands that the dims fill.
  int64_t steps() const { return layout_.steps; }

  __mmask32 dims_from(int64_t step) const { return BFloat16Cache::first(a_.head_dim - 32 * step); }

  // Pairs of values of the keys i and 16 + i, for 32 dims: dims 0-3, 8-11, 16-19, 24-27 in `low`, the others in `high`.
  template <bool kWhole>
  void pair_values(const uint16_t* const* rows, int i, int64_t step, __mmask32 mask, __m512i& low, __m512i& high) const {
    const auto load = [=](const uint16_t* row) {
      return kWhole || row ? _mm512_maskz_loadu_epi16(mask, row + 32 * step) : _mm512_setzero_si512();
    };
    const __m512i x = load(rows[i]), y = load(rows[kKeyTile + i]);
    low = _mm512_unpacklo_epi16(x, y);
    high = _mm512_unpackhi_epi16(x, y);
  }
};

}  // namespace
}  // namespace pallas_kernels
