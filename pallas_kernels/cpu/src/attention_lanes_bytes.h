// Attention with a query in each lane, over a cache of bytes.
#pragma once

#include "attention_bytes_walk.h"
#include "attention_lanes.h"

namespace pallas_kernels {
namespace {

template <class Dot>
class ByteLanes : public Lanes<ByteWalk<Dot, ByteLanes<Dot>>> {
  using Walk = Lanes<ByteWalk<Dot, ByteLanes<Dot>>>;
  using Walk::a_, Walk::layout_, Walk::scores_of;
  using Seen = typename Walk::Seen;
  using Weights = typename Walk::Weights;

 public:
  using Walk::Walk;
  static constexpr bool kPairs = false;

  // Left operands of the weighted values: per 64 keys and 16 dims [dim, key], zero for keys outside [low, high).
  void pack(int64_t start, int64_t low, int64_t high) {
    const int64_t tiles = 4 * layout_.byte_steps;
    for (int64_t part = 0; part < kGroup / kByteRow; ++part) {
      const int64_t position = start + part * kByteRow;
      if (position + kByteRow <= low || position >= high) continue;
      int8_t* to = this->template at<int8_t>(layout_.values) + part * tiles * kByteTile;
      for (int64_t half = 0; half < kByteRow / kChunk; ++half) {
        const int8_t* rows[kChunk];
        this->find_values(position + half * kChunk, low, high, rows);
        for (int quad = 0; quad < kChunk / 4; ++quad)
          for (int64_t step = 0; step < layout_.byte_steps; ++step) {
            this->ahead_.read(4);
            __m512i x[4];
            this->load_quad(rows + 4 * quad, step, x);
            interleave(x);
            for (int m = 0; m < 4; ++m)
              _mm512_store_si512(to + (4 * step + m) * kByteTile + (half * (kChunk / 4) + quad) * kByteRow, x[m]);
          }
      }
      for (int64_t tile = 0; tile < tiles; ++tile, to += kByteTile) {
        __m512i rows[16];
        for (int i = 0; i < 16; ++i) rows[i] = _mm512_load_si512(to + i * kByteRow);
        transpose(rows);
        for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * kByteRow, rows[i]);
      }
    }
  }

  // Adds the values of keys with these scores. Weights, times their values' scales, become whole numbers of 16 bits,
  // [plane, key / 4, query, 4] per 64 keys, and a factor for each query.
  // While that happens, the next 16 queries' scores are computed.
  void add_values(int64_t t, const Seen& seen, const Seen& seen_next, Weights& weights, const State& state) const {
    const float* scales = this->template at<float>(layout_.v_scales);
    float* scores = scores_of(t);
    __m512 top = _mm512_setzero_ps();
    for (int64_t chunk = 0; chunk < kGroup / kChunk; ++chunk) {
      this->add_scores(t + 1, seen_next, chunk, chunk + 1, scores_of(t + 1));
      if (chunk < seen.first_chunk || chunk >= seen.end_chunk) continue;
      float* p = scores + chunk * kChunk * kLanes;
      this->weigh(p, weights, [&](int i, __m512 x, __m512 y) {
        const __m512 scaled_x = _mm512_mul_ps(x, _mm512_set1_ps(scales[chunk * kChunk + i]));
        const __m512 scaled_y = _mm512_mul_ps(y, _mm512_set1_ps(scales[chunk * kChunk + kKeyTile + i]));
        _mm512_store_ps(p + i * kLanes, scaled_x);
        _mm512_store_ps(p + (kKeyTile + i) * kLanes, scaled_y);
        top = _mm512_max_ps(top, _mm512_max_ps(scaled_x, scaled_y));
      });
    }
    _mm512_store_ps(state.total, _mm512_add_ps(_mm512_load_ps(state.total), weights.sum));
    const int64_t first_part = seen.first_chunk / 2, end_part = (seen.end_chunk + 1) / 2;
    const int64_t tiles = 4 * layout_.byte_steps;
    int8_t* to = this->template at<int8_t>(layout_.weights);
    const __m512 codes = to_codes(top, kLargestWeight);
    const __m512 factors = _mm512_add_ps(from_codes(top, kLargestWeight), _mm512_set1_ps(this->flaw_));
    for (int64_t quad = first_part * (kByteRow / 4); quad < end_part * (kByteRow / 4); ++quad) {
      __m512i c[4] = {};
      const int64_t chunk = 4 * quad / kChunk;
      if (chunk >= seen.first_chunk && chunk < seen.end_chunk)
        for (int i = 0; i < 4; ++i)
          c[i] = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_load_ps(scores + (4 * quad + i) * kLanes), codes));
      _mm512_store_si512(to + quad * kByteRow, pack_high(c));
      _mm512_store_si512(to + kPlane + quad * kByteRow, pack_low(c));
    }
    const int8_t* values = this->template at<int8_t>(layout_.values) + first_part * tiles * kByteTile;
    int32_t* sums = this->template at<int32_t>(layout_.sums);
    for (int64_t first = 0; first < tiles; first += kMostOperands) {
      const int8_t* operands[kMostOperands];
      for (int64_t i = 0; i < kMostOperands; ++i) operands[i] = values + (first + i) * kByteTile;
      for (int64_t plane = 0; plane < 2; ++plane)
        Dot::template share_right<false>(operands, kMostOperands, kByteRow, tiles * kByteTile,
                                         to + plane * kPlane + first_part * kByteTile, kByteTile, end_part - first_part,
                                         sums + plane * kMostOperands * kResult);
      for (int64_t tile = 0; tile < kMostOperands; ++tile)
        for (int64_t i = 0; i < 16; ++i) {
          const int64_t dim = dim_of(first + tile, i);
          if (dim >= a_.head_dim) continue;
          const int32_t* p = sums + tile * kResult + i * kLanes;
          const __m512 sum = join(_mm512_load_si512(p), _mm512_load_si512(p + kMostOperands * kResult));
          float* sum_to = state.values + dim * kLanes;
          _mm512_store_ps(sum_to, _mm512_add_ps(_mm512_load_ps(sum_to), _mm512_mul_ps(sum, factors)));
        }
    }
  }

 private:
  static constexpr int64_t kPlane = kGroup / kByteRow * kByteTile;
};

}  // namespace
}  // namespace pallas_kernels
