// Attention with a key in each lane, over a cache of bytes.
#pragma once

#include "attention_bytes_walk.h"
#include "attention_rows.h"

namespace pallas_kernels {
namespace {

template <class Dot>
class ByteRows : public Rows<ByteWalk<Dot, ByteRows<Dot>>> {
  using Walk = Rows<ByteWalk<Dot, ByteRows<Dot>>>;
  using Walk::a_, Walk::layout_, Walk::lanes;
  using State = typename Walk::State;
  using Seen = typename Walk::Seen;

 public:
  using Walk::Walk;
  static constexpr bool kScoresByRow = false;

  // Of the values in a state, where a dim of a lane is: [tile, lane, 16], as interleave orders them.
  int64_t index_of(int64_t lane, int64_t i) const {
    const int64_t dim = i % 64, tile = i / 64 * 4 + dim % 16 / 4;
    return tile * kResult + lane * 16 + dim / 16 * 4 + dim % 4;
  }

  int64_t tiles() const { return 4 * layout_.byte_steps; }

  // Right operands of the weighted values: per 64 keys and 16 dims [key / 4, dim, 4], zero for keys outside [low, high).
  void pack(int64_t chunk, int64_t position, int64_t low, int64_t high) {
    const int8_t* rows[kChunk];
    this->find_values(position, low, high, rows);
    int8_t* to = this->template at<int8_t>(layout_.values) + chunk / 2 * tiles() * kByteTile;
    to += chunk % 2 * (kByteTile / 2);
    for (int quad = 0; quad < kChunk / 4; ++quad)
      for (int64_t step = 0; step < layout_.byte_steps; ++step) {
        if (quad % 2 == 0) this->ahead_.read(4);
        __m512i x[4];
        this->load_quad(rows + 4 * quad, step, x);
        interleave(x);
        for (int m = 0; m < 4; ++m) _mm512_store_si512(to + (4 * step + m) * kByteTile + quad * kByteRow, x[m]);
      }
  }

  // The weights of up to four lanes, given their largest logits. Each lane's, times their values' scales, become whole
  // numbers of 16 bits, [plane, lane, key] per 64 keys, up to eight lanes' low bytes lying below their high ones; and a
  // factor.
  template <int kCount>
  void weigh_from(int lane, const Seen& seen, __m128 largest, __m128 total) const {
    const float* scales = this->template at<float>(layout_.v_scales);
    float* logits = this->template at<float>(layout_.scores) + kGroup * kLanes;
    const __m512 by = _mm512_set1_ps(this->factor());
    __m128 sum = _mm_setzero_ps();
    __m512 top[4] = {};
    for (int64_t chunk = seen.first_chunk; chunk < seen.end_chunk; ++chunk) {
      __m512 sums[4] = {};
      for (int i = 0; i < kCount; ++i) {
        float* p = logits + (lane + i) * kGroup + chunk * kChunk;
        const __m512 base = _mm512_set1_ps(largest[i]);
        const __m512 x = exp2(_mm512_fmsub_ps(_mm512_load_ps(p), by, base));
        const __m512 y = exp2(_mm512_fmsub_ps(_mm512_load_ps(p + kKeyTile), by, base));
        sums[i] = _mm512_add_ps(x, y);
        const __m512 scaled_x = _mm512_mul_ps(x, _mm512_load_ps(scales + chunk * kChunk));
        const __m512 scaled_y = _mm512_mul_ps(y, _mm512_load_ps(scales + chunk * kChunk + kKeyTile));
        _mm512_store_ps(p, scaled_x);
        _mm512_store_ps(p + kKeyTile, scaled_y);
        top[i] = _mm512_max_ps(top[i], _mm512_max_ps(scaled_x, scaled_y));
      }
      sum = _mm_add_ps(sum, reduce(sums, [](__m512 x, __m512 y) { return _mm512_add_ps(x, y); }));
    }
    _mm_store_ps(this->state(layout_.span).total + lane, _mm_add_ps(total, sum));
    const __m512 tops = _mm512_castps128_ps512(reduce(top, [](__m512 x, __m512 y) { return _mm512_max_ps(x, y); }));
    const __m512 codes = to_codes(tops, kLargestWeight), factors = from_codes(tops, kLargestWeight);
    for (int i = 0; i < kCount; ++i) {
      weight_factors()[lane + i] = factors[i] + this->flaw_;
      const __m512 by_lane = _mm512_set1_ps(codes[i]);
      for (int64_t tile = seen.first_chunk / 2 * 4; tile < (seen.end_chunk + 1) / 2 * 4; ++tile) {
        const bool seen_here = tile >= 2 * seen.first_chunk && tile < 2 * seen.end_chunk;
        const __m512i code = seen_here ? _mm512_cvtps_epi32(_mm512_mul_ps(
            _mm512_load_ps(logits + (lane + i) * kGroup + tile * kKeyTile), by_lane)) : _mm512_setzero_si512();
        store_codes(lane + i, tile, code);
      }
    }
  }

  void add_values(const Seen& seen) const {
    const State state = this->state(layout_.span);
    const int64_t first_part = seen.first_chunk / 2, parts = (seen.end_chunk + 1) / 2 - first_part;
    const int8_t* weights = this->template at<int8_t>(layout_.weights) + first_part * kByteTile;
    const int8_t* values = this->template at<int8_t>(layout_.values) + first_part * tiles() * kByteTile;
    int32_t* sums = this->template at<int32_t>(layout_.sums);
    const int64_t low_at = this->planes() == 1 ? kLanes / 2 * 16 : kMostOperands * kResult;
    for (int64_t first = 0; first < tiles(); first += kMostOperands) {
      for (int64_t plane = 0; plane < this->planes(); ++plane)
        Dot::share_left(weights + plane * (kGroup / kByteRow) * kByteTile, kByteTile, values + first * kByteTile,
                        tiles() * kByteTile, parts, sums + plane * kMostOperands * kResult);
      for (int64_t tile = 0; tile < kMostOperands; ++tile)
        for (int lane = 0; lane < lanes(); ++lane) {
          const int32_t* p = sums + tile * kResult + lane * 16;
          const __m512 sum = join(_mm512_load_si512(p), _mm512_load_si512(p + low_at));
          float* to = state.values + (first + tile) * kResult + lane * 16;
          const __m512 more = _mm512_mul_ps(sum, _mm512_set1_ps(weight_factors()[lane]));
          _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), more));
        }
    }
  }

  void write(const State& state, int lane, float share, uint16_t* out) const {
    for (int64_t dim = 0; dim < a_.head_dim; dim += 64) {
      __m512 x[4];
      for (int m = 0; m < 4; ++m) {
        const __m512 sums = _mm512_load_ps(state.values + (dim / 16 + m) * kResult + lane * 16);
        x[m] = _mm512_mul_ps(_mm512_add_ps(sums, _mm512_setzero_ps()), _mm512_set1_ps(share));
      }
      put_in_order(x);
      for (int64_t i = 0; i < 4 && dim + 16 * i < a_.head_dim; ++i)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + dim + 16 * i), (__m256i)_mm512_cvtneps_pbh(x[i]));
    }
  }

 private:
  float* weight_factors() const { return this->template at<float>(layout_.weight_scales); }

  void store_codes(int lane, int64_t tile, __m512i code) const {
    int8_t* high = this->template at<int8_t>(layout_.weights) + tile / 4 * kByteTile;
    high += lane * kByteRow + tile % 4 * kKeyTile;
    int8_t* low = high + (this->planes() == 1 ? kLanes / 2 * kByteRow : kGroup / kByteRow * kByteTile);
    _mm_store_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(_mm512_srli_epi32(code, 8)));
    _mm_store_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(code));
  }
};

}  // namespace
}  // namespace pallas_kernels
