// Attention with a query in each lane, over a cache of bfloat16.
#pragma once

#include "attention_bfloat16.h"
#include "attention_lanes.h"

namespace pallas_kernels {
namespace {

template <class Dot>
class BFloat16Lanes : public Lanes<BFloat16Walk<Dot, BFloat16Lanes<Dot>>> {
  using Walk = Lanes<BFloat16Walk<Dot, BFloat16Lanes<Dot>>>;
  using Walk::a_, Walk::layout_, Walk::scores_of;
  using Seen = typename Walk::Seen;
  using Weights = typename Walk::Weights;

 public:
  using Walk::Walk;
  static constexpr bool kScoresByRow = false;

  // Left operands of the weighted values: per 32 keys and 16 dims [dim, key], zero for keys outside [low, high).
  void pack(int64_t start, int64_t low, int64_t high) {
    for (int64_t chunk = 0; chunk < kGroup / kChunk; ++chunk) {
      const int64_t position = start + chunk * kChunk;
      if (position + kChunk <= low || position >= high) continue;
      const uint16_t* rows[kChunk];
      const bool whole = this->find_values(position, low, high, rows);
      uint16_t* to = this->template at<uint16_t>(layout_.values) + chunk * (a_.head_dim / 16) * kTile;
      for (int64_t step = 0; step < layout_.steps; ++step) {
        if (whole)
          pack_values<true>(rows, step, to + 2 * step * kTile);
        else
          pack_values<false>(rows, step, to + 2 * step * kTile);
      }
    }
  }

  // Adds the values of keys with these scores.
  void add_values(int64_t t, const Seen& seen, const Seen& seen_next, Weights& weights, const State& state) {
    float* scores = scores_of(t);
    const int64_t tiles = a_.head_dim / 16, at_once = this->min(tiles, Dot::kMostSums);
    uint16_t* to = this->template at<uint16_t>(layout_.weights);
    const uint16_t* values = this->template at<uint16_t>(layout_.values);
    Dot::load_sums(state.values, at_once);
    for (int64_t chunk = 0; chunk <= kGroup / kChunk; ++chunk) {
      this->add_scores(t + 1, seen_next, chunk, chunk + 1, scores_of(t + 1));
      if (chunk > seen.first_chunk && chunk <= seen.end_chunk)
        Dot::add_values(values + (chunk - 1) * tiles * kTile, at_once, to + (chunk - 1) * kTile, state.values);
      if (chunk >= seen.first_chunk && chunk < seen.end_chunk)
        this->weigh(scores + chunk * kChunk * kLanes, weights, [=](int i, __m512 x, __m512 y) {
          _mm512_store_si512(to + chunk * kTile + i * 2 * kLanes, round_to_pairs(x, y));
        });
    }
    Dot::store_sums(state.values, at_once);
    for (int64_t first = at_once; first < tiles; first += at_once) {
      const int64_t count = this->min(tiles - first, at_once);
      float* sums = state.values + first * kResult;
      Dot::load_sums(sums, count);
      for (int64_t chunk = seen.first_chunk; chunk < seen.end_chunk; ++chunk)
        Dot::add_values(values + (chunk * tiles + first) * kTile, count, to + chunk * kTile, sums);
      Dot::store_sums(sums, count);
    }
    _mm512_store_ps(state.total, _mm512_add_ps(_mm512_load_ps(state.total), weights.sum));
  }

 private:
  template <bool kWhole>
  void pack_values(const uint16_t* const* rows, int64_t step, uint16_t* to) {
    const __mmask32 mask = this->dims_from(step);
    __m512i low[16], high[16];
    for (int i = 0; i < 16; ++i) {
      this->ahead_.read(2);
      this->template pair_values<kWhole>(rows, i, step, mask, low[i], high[i]);
    }
    transpose(low);
    transpose(high);
    const int dims = static_cast<int>(this->min(32, a_.head_dim - 32 * step));
    for (int i = 0; i < 16; ++i) {
      const int dim = i / 4 * 8 + i % 4;
      if (dim < dims) _mm512_store_si512(to + 32 * dim, low[i]);
      if (dim + 4 < dims) _mm512_store_si512(to + 32 * (dim + 4), high[i]);
    }
  }
};

}  // namespace
}  // namespace pallas_kernels
