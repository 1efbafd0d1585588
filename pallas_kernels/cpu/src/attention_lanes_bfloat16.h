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
  static constexpr bool kScoresByRow = false, kPairs = Dot::kPairs;

  // Left operands of the weighted values: per 32 keys and 16 dims [dim, key], zero for keys outside [low, high).
  void pack(int64_t start, int64_t low, int64_t high) {
    if constexpr (kPairs) copy_keys(start, low, high);
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
    const int64_t tiles = a_.head_dim / 16, at_once = this->min(tiles, Dot::kMostSums);
    const uint16_t *to = weights_of(t), *values = this->template at<uint16_t>(layout_.values);
    Dot::load_sums(state.values, at_once);
    for (int64_t chunk = 0; chunk <= kGroup / kChunk; ++chunk) {
      this->add_scores(t + 1, seen_next, chunk, chunk + 1, scores_of(t + 1));
      if (chunk > seen.first_chunk && chunk <= seen.end_chunk)
        Dot::add_values(values + (chunk - 1) * tiles * kTile, at_once, to + (chunk - 1) * kTile, state.values);
      if (chunk >= seen.first_chunk && chunk < seen.end_chunk) weigh_chunk(t, chunk, weights);
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

  // Scores of the tiles of queries t and t + 1, which see these keys.
  void add_pair_scores(int64_t t, const Seen (&seen)[2]) {
    const bool both = seen[0].first_tile < seen[0].end_tile && seen[1].first_tile < seen[1].end_tile;
    if (!both || this->key_stride_ != 32) {
      for (int i = 0; i < 2; ++i) this->add_scores(t + i, seen[i], 0, kGroup / kChunk, scores_of(t + i));
      return;
    }
    const int64_t first = this->min(seen[0].first_tile, seen[1].first_tile);
    const int64_t end = this->max(seen[0].end_tile, seen[1].end_tile);
    const uint16_t* q = this->template at<uint16_t>(layout_.q) + t * layout_.steps * kTile;
    for (int64_t tile = first; tile < end; ++tile)
      Dot::pair_scores(this->keys_[tile], q, q + layout_.steps * kTile, layout_.steps, scores_of(t) + tile * kResult,
                       scores_of(t + 1) + tile * kResult);
  }

  void weigh_chunks(int64_t t, const Seen& seen, Weights& weights) {
    for (int64_t chunk = seen.first_chunk; chunk < seen.end_chunk; ++chunk) weigh_chunk(t, chunk, weights);
  }

  // Adds the values of chunks in their order, to both tiles of queries at once where both see them.
  void add_pair_values(int64_t t, const Seen (&seen)[2]) const {
    const int64_t tiles = a_.head_dim / 16;
    const uint16_t* values = this->template at<uint16_t>(layout_.values);
    const auto sums = [&](int i) { return this->state(layout_.span, t + i).values; };
    const auto add = [&](int i, int64_t first, int64_t end) {
      if (first < end) Dot::add_chunks(values, tiles, weights_of(t + i), first, end, sums(i));
    };
    const int64_t first = this->max(seen[0].first_chunk, seen[1].first_chunk);
    const int64_t end = this->min(seen[0].end_chunk, seen[1].end_chunk);
    for (int i = 0; i < 2; ++i) add(i, seen[i].first_chunk, first < end ? first : seen[i].end_chunk);
    if (first >= end) return;
    Dot::add_pair_chunks(values, tiles, weights_of(t), weights_of(t + 1), first, end, sums(0), sums(1));
    for (int i = 0; i < 2; ++i) add(i, end, seen[i].end_chunk);
  }

 private:
  uint16_t* weights_of(int64_t t) const {
    return this->template at<uint16_t>(layout_.weights) + t % 2 * (kGroup / kChunk * kTile);
  }

  void weigh_chunk(int64_t t, int64_t chunk, Weights& weights) const {
    uint16_t* to = weights_of(t) + chunk * kTile;
    this->weigh(scores_of(t) + chunk * kChunk * kLanes, weights, [=](int i, __m512 x, __m512 y) {
      _mm512_store_si512(to + i * 2 * kLanes, round_to_pairs(x, y));
    });
  }

  // Keys that lie in the pool, step by step.
  void copy_keys(int64_t start, int64_t low, int64_t high) {
    uint16_t* to = this->template at<uint16_t>(layout_.keys);
    const int64_t stride = this->key_stride_, first = (low - start) / kKeyTile;
    if (this->keys_[first] == to + first * kKeyTile * stride) return;  // copied already, by rows
    for (int64_t tile = first; tile * kKeyTile < high - start; ++tile) {
      const uint16_t* from = this->keys_[tile];
      uint16_t* at = to + tile * kKeyTile * stride;
      this->keys_[tile] = at;
      for (int64_t step = 0; step < layout_.steps; ++step, at += kTile)
        for (int i = 0; i < kKeyTile; ++i)
          _mm512_store_si512(at + 32 * i, _mm512_loadu_si512(from + i * stride + 32 * step));
    }
    this->key_stride_ = 32;
  }

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
