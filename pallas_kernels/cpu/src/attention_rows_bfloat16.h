// Attention with a key in each lane, over a cache of bfloat16.
#pragma once

#include "attention_bfloat16.h"
#include "attention_rows.h"

namespace pallas_kernels {
namespace {

template <class Dot>
class BFloat16Rows : public Rows<BFloat16Walk<Dot, BFloat16Rows<Dot>>> {
  using Walk = Rows<BFloat16Walk<Dot, BFloat16Rows<Dot>>>;
  using Walk::a_, Walk::layout_, Walk::lanes;
  using State = typename Walk::State;
  using Seen = typename Walk::Seen;

 public:
  using Walk::Walk;
  static constexpr bool kScoresByRow = Dot::kScoresByRow;

  // Of the values in a state, where a dim of a lane is: [pair of tiles of 32 dims, lane, 16], as pair_values orders them.
  int64_t index_of(int64_t lane, int64_t i) const {
    const int64_t dim = i % 32, tile = i / 32 * 2 + dim / 4 % 2;
    return tile * kResult + lane * 16 + dim / 8 * 4 + dim % 4;
  }

  int64_t tiles() const { return 2 * layout_.steps; }

  // Right operands of the weighted values: per 32 keys and 16 dims [key, dim, 2], zero for keys outside [low, high).
  void pack(int64_t chunk, int64_t position, int64_t low, int64_t high) const {
    const uint16_t* rows[kChunk];
    const bool whole = this->find_values(position, low, high, rows);
    uint16_t* to = this->template at<uint16_t>(layout_.values) + chunk * tiles() * kTile;
    for (int64_t step = 0; step < layout_.steps; ++step, to += 2 * kTile) {
      if (whole)
        pack_values<true>(rows, step, to);
      else
        pack_values<false>(rows, step, to);
    }
  }

  // The weights of up to four lanes, given their largest logits.
  template <int kCount>
  void weigh_from(int lane, const Seen& seen, __m128 largest, __m128 total) const {
    const State state = this->state(layout_.span);
    const float* logits = this->template at<float>(layout_.scores) + kGroup * kLanes;
    __m128 sum = _mm_setzero_ps();
    uint16_t* to = this->template at<uint16_t>(layout_.weights) + 2 * kLanes * lane;
    for (int64_t chunk = seen.first_chunk; chunk < seen.end_chunk; ++chunk) {
      __m512 sums[4] = {};
      for (int i = 0; i < kCount; ++i) {
        const float* p = logits + (lane + i) * kGroup + chunk * kChunk;
        const __m512 base = _mm512_set1_ps(largest[i]), by = _mm512_set1_ps(this->factor());
        const __m512 x = exp2(_mm512_fmsub_ps(_mm512_load_ps(p), by, base));
        const __m512 y = exp2(_mm512_fmsub_ps(_mm512_load_ps(p + kKeyTile), by, base));
        _mm512_store_si512(to + chunk * kTile + 2 * kLanes * i, round_to_pairs(x, y));
        sums[i] = _mm512_add_ps(x, y);
      }
      sum = _mm_add_ps(sum, reduce(sums, [](__m512 x, __m512 y) { return _mm512_add_ps(x, y); }));
    }
    _mm_store_ps(state.total + lane, _mm_add_ps(total, sum));
  }

  void add_values(const Seen& seen) {
    const State state = this->state(layout_.span);
    const uint16_t *weights = this->template at<uint16_t>(layout_.weights), *values = this->template at<uint16_t>(layout_.values);
    for (int64_t first = 0; first < tiles(); first += Dot::kMostSums) {
      const int64_t count = this->min(tiles() - first, Dot::kMostSums);
      float* sums = state.values + first * kResult;
      Dot::load_sums(sums, count);
      for (int64_t chunk = seen.first_chunk; chunk < seen.end_chunk; ++chunk) {
        const uint16_t* from = values + (chunk * tiles() + first) * kTile;
        Dot::add_rows(weights + chunk * kTile, lanes(), from, count, sums, this->ahead_);
      }
      Dot::store_sums(sums, count);
    }
  }

  // One lane's result.
  void write(const State& state, int lane, float share, uint16_t* out) const {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int64_t step = 0; step < layout_.steps; ++step) {
      // Adding zero makes a negative zero positive, as the merge of spans does.
      const auto take = [&](int64_t tile) {
        const __m512 sums = _mm512_load_ps(state.values + tile * kResult + lane * 16);
        return _mm512_mul_ps(_mm512_add_ps(sums, _mm512_setzero_ps()), _mm512_set1_ps(share));
      };
      const __m512 low = take(2 * step), high = take(2 * step + 1);
      const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(_mm512_permutex2var_ps(low, second, high),
                                                           _mm512_permutex2var_ps(low, first, high));
      _mm512_mask_storeu_epi16(out + 32 * step, this->dims_from(step), rounded);
    }
  }

 private:
  template <bool kWhole>
  void pack_values(const uint16_t* const* rows, int64_t step, uint16_t* to) const {
    const __mmask32 mask = this->dims_from(step);
    for (int i = 0; i < kKeyTile; ++i) {
      __m512i low, high;
      this->template pair_values<kWhole>(rows, i, step, mask, low, high);
      _mm512_store_si512(to + 32 * i, low);
      _mm512_store_si512(to + kTile + 32 * i, high);
    }
  }
};

}  // namespace
}  // namespace pallas_kernels
