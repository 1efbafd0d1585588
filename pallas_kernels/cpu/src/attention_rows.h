// Attention with a key in each lane: a row of weights for each query. For up to 16 queries of a kv head, such as the
// decodes of one request, of which ByLanes would leave most lanes empty; and values need no transposing.
#pragma once

#include "attention_walk.h"

namespace pallas_kernels {
namespace {

// Combines the lanes of each vector, neighbours first: lane i of the result is that of x[i].
template <typename Combine>
inline __m128 reduce(const __m512 (&x)[4], const Combine& combine) {
  const auto halve = [&](__m512 a, __m512 b) {
    return combine(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
  };
  const __m512 fours = halve(halve(x[0], x[1]), halve(x[2], x[3]));  // of 4 keys in each quarter
  const __m512 eights = combine(fours, _mm512_shuffle_f32x4(fours, fours, 0xb1));
  return _mm512_castps512_ps128(combine(eights, _mm512_shuffle_f32x4(eights, eights, 0x4e)));
}

template <class Dot, class Cache>
class ByRows : public TileWalk<Dot, Cache, ByRows<Dot, Cache>> {
  using Walk = TileWalk<Dot, Cache, ByRows<Dot, Cache>>;
  using Number = typename Cache::Number;
  friend Walk;
  using Walk::a_, Walk::layout_;
  using Seen = typename Walk::Seen;

 public:
  using Walk::TileWalk;

 private:
  // What is known of the queries after some keys: largest logits (base 2) and sums of weights [lane]; then weighted
  // sums of values [pair of tiles of 32 dims, lane, 16], dims in the order of pair_values,
  // or of interleave.
  struct State {
    float *largest, *total, *values;
  };
  State state(size_t offset) const {
    float* p = this->template at<float>(offset);
    return {p, p + kLanes, p + 2 * kLanes};
  }

  // Where in a state the number `i` of a lane is.
  int64_t state_index(int64_t lane, int64_t i) const {
    if (i < 2) return i * kLanes + lane;
    if constexpr (Cache::kBytes) {
      const int64_t dim = (i - 2) % 64, tile = (i - 2) / 64 * 4 + dim % 16 / 4;
      return 2 * kLanes + tile * kResult + lane * 16 + dim / 16 * 4 + dim % 4;
    }
    const int64_t dim = (i - 2) % 32, tile = (i - 2) / 32 * 2 + dim / 4 % 2;
    return 2 * kLanes + tile * kResult + lane * 16 + dim / 8 * 4 + dim % 4;
  }

  int lanes() const { return this->lanes_of(0); }
  int64_t tiles() const { return Cache::kBytes ? 4 * layout_.byte_steps : 2 * layout_.steps; }

  // Calls change(row) for what is known of a lane's values, 16 of them at once.
  template <typename Change>
  void change_values(const State& state, int lane, const Change& change) const {
    for (int64_t tile = 0; tile < tiles(); ++tile) {
      float* row = state.values + tile * kResult + lane * 16;
      _mm512_store_ps(row, change(_mm512_load_ps(row), row - state.values));
    }
  }

  void scale_values(const State& state, int lane, float by) const {
    change_values(state, lane, [by](__m512 x, int64_t) { return _mm512_mul_ps(x, _mm512_set1_ps(by)); });
  }

  void clear(size_t offset) const {
    const State state = this->state(offset);
    _mm512_store_ps(state.largest, _mm512_set1_ps(kLowest));
    for (float* p = state.total; p < state.values + tiles() * kResult; p += 16) _mm512_store_ps(p, _mm512_setzero_ps());
  }

  void merge_span() const {
    const State all = state(layout_.all), part = state(layout_.span);
    alignas(64) float f[kLanes], g[kLanes];
    const __m512 mine = _mm512_load_ps(all.largest), other = _mm512_load_ps(part.largest);
    const __m512 largest = _mm512_max_ps(mine, other);
    const __m512 keep = exp2(_mm512_sub_ps(mine, largest)), take = exp2(_mm512_sub_ps(other, largest));
    _mm512_store_ps(f, keep);
    _mm512_store_ps(g, take);
    _mm512_store_ps(all.largest, largest);
    _mm512_store_ps(all.total, _mm512_fmadd_ps(_mm512_load_ps(all.total), keep,
                                               _mm512_mul_ps(_mm512_load_ps(part.total), take)));
    for (int lane = 0; lane < lanes(); ++lane)
      change_values(all, lane, [&](__m512 x, int64_t at) {
        const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(part.values + at), _mm512_set1_ps(g[lane]));
        return _mm512_fmadd_ps(x, _mm512_set1_ps(f[lane]), scaled);
      });
  }

  // The keys [low, high), which lie in the group from position `start` on.
  void add_group(int64_t start, int64_t low, int64_t high) {
    const Seen seen = this->see(0, start, low, high);
    this->point_at_keys(start, low, high);
    float* scores = this->template at<float>(layout_.scores);
    for (int64_t chunk = 0; chunk < kGroup / kChunk; ++chunk) {
      if (chunk < seen.first_chunk || chunk >= seen.end_chunk) continue;
      read_ahead_half_a_chunk();
      this->add_scores(0, seen, chunk, chunk + 1, scores);
      if constexpr (Cache::kBytes)
        pack_bytes(chunk, start + chunk * kChunk, low, high);
      else
        pack_values(chunk, start + chunk * kChunk, low, high);
    }
    if (seen.first_chunk == seen.end_chunk) return;
    for (int lane = 0; lane < lanes(); lane += 4) {
      switch (lanes() - lane) {
        case 1: weigh<1>(lane, start, seen); break;
        case 2: weigh<2>(lane, start, seen); break;
        case 3: weigh<3>(lane, start, seen); break;
        default: weigh<4>(lane, start, seen);
      }
    }
    if constexpr (Cache::kBytes)
      add_bytes(seen);
    else
      add_values(seen);
  }

  // Before tile products, which leave the rest of the core idle. A little more than half, so as not to fall behind where
  // a chunk is not seen.
  void read_ahead_half_a_chunk() { this->ahead_.read(17 * (Cache::kBytes ? layout_.byte_steps : layout_.steps)); }

  // Right operands of the weighted values in bytes: per 64 keys and 16 dims [key / 4, dim, 4].
  void pack_bytes(int64_t chunk, int64_t position, int64_t low, int64_t high) {
    const Number* rows[kChunk];
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

  // Right operands of the weighted values: per 32 keys and 16 dims [key, dim, 2], zero for keys outside [low, high).
  void pack_values(int64_t chunk, int64_t position, int64_t low, int64_t high) const {
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

  // The weights of up to four lanes, from `lane` on; brings what the state holds to the same base.
  template <int kCount>
  void weigh(int lane, int64_t start, const Seen& seen) const {
    const State state = this->state(layout_.span);
    float* logits = this->template at<float>(layout_.scores) + kGroup * kLanes;  // [lane, key]
    __m512 top[4];
    for (auto& x : top) x = _mm512_set1_ps(-INFINITY);
    for (int64_t tile = 2 * seen.first_chunk; tile < 2 * seen.end_chunk; ++tile) {
      __m512 scores[4];
      turn(this->template at<float>(layout_.scores) + tile * kResult + lane, scores);
      for (int i = 0; i < kCount; ++i) {
        if (a_.soft_cap > 0) scores[i] = tanh(_mm512_mul_ps(scores[i], _mm512_set1_ps(a_.scale / a_.soft_cap)));
        if (!seen.whole) scores[i] = hide(lane + i, start + tile * kKeyTile, scores[i]);
        _mm512_store_ps(logits + (lane + i) * kGroup + tile * kKeyTile, scores[i]);
        top[i] = _mm512_max_ps(top[i], scores[i]);
      }
    }
    const __m128 before = _mm_load_ps(state.largest + lane), scale = _mm_set1_ps(this->factor());
    const __m128 highest = reduce(top, [](__m512 x, __m512 y) { return _mm512_max_ps(x, y); });
    const __m128 largest = _mm_max_ps(before, _mm_mul_ps(highest, scale));
    __m128 total = _mm_load_ps(state.total + lane);
    if (_mm_cmp_ps_mask(largest, before, _CMP_NEQ_UQ)) {
      const __m128 shrink = _mm512_castps512_ps128(exp2(_mm512_castps128_ps512(_mm_sub_ps(before, largest))));
      _mm_store_ps(state.largest + lane, largest);
      total = _mm_mul_ps(total, shrink);
      for (int i = 0; i < kCount; ++i) scale_values(state, lane + i, shrink[i]);
    }
    if constexpr (Cache::kBytes) return weigh_bytes<kCount>(lane, seen, largest, total);
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

  // The same from the largest logits on. Each lane's weights, times their values' scales, become whole numbers of 16
  // bits, [plane, lane, key] per 64 keys, up to eight lanes' low bytes lying below their high ones; and a factor.
  template <int kCount>
  void weigh_bytes(int lane, const Seen& seen, __m128 largest, __m128 total) const {
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
    _mm_store_ps(state(layout_.span).total + lane, _mm_add_ps(total, sum));
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

  float* weight_factors() const { return this->template at<float>(layout_.weight_scales); }

  void store_codes(int lane, int64_t tile, __m512i code) const {
    int8_t* high = this->template at<int8_t>(layout_.weights) + tile / 4 * kByteTile;
    high += lane * kByteRow + tile % 4 * kKeyTile;
    int8_t* low = high + (this->planes() == 1 ? kLanes / 2 * kByteRow : kGroup / kByteRow * kByteTile);
    _mm_store_si128(reinterpret_cast<__m128i*>(high), _mm512_cvtepi32_epi8(_mm512_srli_epi32(code, 8)));
    _mm_store_si128(reinterpret_cast<__m128i*>(low), _mm512_cvtepi32_epi8(code));
  }

  // Four columns of 16 rows of scores.
  static void turn(const float* scores, __m512 (&columns)[4]) {
    __m512 r[4];
    for (int i = 0; i < 4; ++i) {  // rows i, 4 + i, 8 + i, 12 + i
      const float* p = scores + i * kLanes;
      r[i] = _mm512_castps128_ps512(_mm_load_ps(p));
      r[i] = _mm512_insertf32x4(r[i], _mm_load_ps(p + 4 * kLanes), 1);
      r[i] = _mm512_insertf32x4(r[i], _mm_load_ps(p + 8 * kLanes), 2);
      r[i] = _mm512_insertf32x4(r[i], _mm_load_ps(p + 12 * kLanes), 3);
    }
    const __m512 a = _mm512_unpacklo_ps(r[0], r[1]), b = _mm512_unpackhi_ps(r[0], r[1]);
    const __m512 c = _mm512_unpacklo_ps(r[2], r[3]), d = _mm512_unpackhi_ps(r[2], r[3]);
    columns[0] = _mm512_shuffle_ps(a, c, 0x44);
    columns[1] = _mm512_shuffle_ps(a, c, 0xee);
    columns[2] = _mm512_shuffle_ps(b, d, 0x44);
    columns[3] = _mm512_shuffle_ps(b, d, 0xee);
  }

  // Scores of 16 keys, -inf for those that a lane does not see.
  __m512 hide(int lane, int64_t position, __m512 scores) const {
    const __m512i count = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i positions = _mm512_add_epi32(_mm512_set1_epi32(static_cast<int>(position)), count);
    const __mmask16 begun = _mm512_cmpge_epi32_mask(positions, _mm512_set1_epi32(this->first_[lane]));
    const __mmask16 seen = _mm512_mask_cmple_epi32_mask(begun, positions, _mm512_set1_epi32(this->last_[lane]));
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), seen, scores);
  }

  void add_values(const Seen& seen) {
    const State state = this->state(layout_.span);
    const uint16_t *weights = this->template at<uint16_t>(layout_.weights), *values = this->template at<uint16_t>(layout_.values);
    for (int64_t first = 0; first < tiles(); first += Dot::kMostSums) {
      const int64_t count = this->min(tiles() - first, Dot::kMostSums);
      float* sums = state.values + first * kResult;
      Dot::load_sums(sums, count);
      for (int64_t chunk = seen.first_chunk; chunk < seen.end_chunk; ++chunk) {
        read_ahead_half_a_chunk();
        Dot::add_rows(weights + chunk * kTile, lanes(), values + (chunk * tiles() + first) * kTile, count, sums);
      }
      Dot::store_sums(sums, count);
    }
  }

  void add_bytes(const Seen& seen) const {
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

  void finish(size_t offset) const {
    const State state = this->state(offset);
    if (a_.sinks) add_sinks(state);
    alignas(64) float shares[kLanes];
    const __m512 total = _mm512_load_ps(state.total);
    const __mmask16 some = _mm512_cmp_ps_mask(total, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    _mm512_store_ps(shares, _mm512_maskz_div_ps(some, _mm512_set1_ps(1.0f), total));
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int lane = 0; lane < lanes(); ++lane) {
      uint16_t* out = a_.out + this->result(lane) * a_.head_dim;
      if constexpr (Cache::kBytes) {
        finish_bytes(state, lane, shares[lane], out);
        continue;
      }
      for (int64_t step = 0; step < layout_.steps; ++step) {
        // Adding zero makes a negative zero positive, as the merge of spans does.
        const auto take = [&](int64_t tile) {
          const __m512 sums = _mm512_load_ps(state.values + tile * kResult + lane * 16);
          return _mm512_mul_ps(_mm512_add_ps(sums, _mm512_setzero_ps()), _mm512_set1_ps(shares[lane]));
        };
        const __m512 low = take(2 * step), high = take(2 * step + 1);
        const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(_mm512_permutex2var_ps(low, second, high),
                                                             _mm512_permutex2var_ps(low, first, high));
        _mm512_mask_storeu_epi16(out + 32 * step, this->dims_from(step), rounded);
      }
    }
    this->write_lse(0, state.largest, state.total);
  }

  void finish_bytes(const State& state, int lane, float share, uint16_t* out) const {
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

  void add_sinks(const State& state) const {
    alignas(64) float shrinks[kLanes];
    const __m512 sink = this->sinks(0), before = _mm512_load_ps(state.largest), largest = _mm512_max_ps(before, sink);
    const __m512 shrink = exp2(_mm512_sub_ps(before, largest));
    _mm512_store_ps(shrinks, shrink);
    _mm512_store_ps(state.largest, largest);
    _mm512_store_ps(state.total, _mm512_fmadd_ps(_mm512_load_ps(state.total), shrink,
                                                 exp2(_mm512_sub_ps(sink, largest))));
    for (int lane = 0; lane < lanes(); ++lane) scale_values(state, lane, shrinks[lane]);
  }
};

}  // namespace
}  // namespace pallas_kernels
