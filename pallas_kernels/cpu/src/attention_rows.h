// Attention with a key in each lane: a row of weights for each query. For up to 16 queries of a kv head, such as the
// decodes of one request, of which Lanes would leave most lanes empty; and values need no transposing.
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

// Walk: BFloat16Walk or ByteWalk, whose `Self` lays out values and weights.
template <class Walk>
class Rows : public Walk {
 public:
  using Walk::Walk;

  // Where in a state the number `i` of a lane is.
  int64_t state_index(int64_t lane, int64_t i) const {
    if (i < 2) return i * kLanes + lane;
    return 2 * kLanes + self().index_of(lane, i - 2);
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
      if constexpr (!Walk::Derived::kScoresByRow) this->ahead_.read(17 * this->steps());
      this->add_scores(0, seen, chunk, chunk + 1, scores);
      self().pack(chunk, start + chunk * kChunk, low, high);
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
    self().add_values(seen);
  }

  void finish(size_t offset) const {
    const State state = this->state(offset);
    if (a_.sinks) add_sinks(state);
    alignas(64) float shares[kLanes];
    const __m512 total = _mm512_load_ps(state.total);
    const __mmask16 some = _mm512_cmp_ps_mask(total, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    _mm512_store_ps(shares, _mm512_maskz_div_ps(some, _mm512_set1_ps(1.0f), total));
    for (int lane = 0; lane < lanes(); ++lane)
      self().write(state, lane, shares[lane], a_.out + this->result(lane) * a_.head_dim);
    this->write_lse(0, state.largest, state.total);
  }

 protected:
  using Walk::a_, Walk::layout_, Walk::self;
  using Seen = typename Walk::Seen;

  // What is known of the queries after some keys: largest logits (base 2) and sums of weights [lane]; then weighted
  // sums of values [tile, lane, 16], in an order of dims of `Self`'s.
  struct State {
    float *largest, *total, *values;
  };
  State state(size_t offset) const {
    float* p = this->template at<float>(offset);
    return {p, p + kLanes, p + 2 * kLanes};
  }

  int lanes() const { return this->lanes_of(0); }
  int64_t tiles() const { return self().tiles(); }

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

 private:
  // The weights of up to four lanes, from `lane` on; brings what the state holds to the same base.
  template <int kCount>
  void weigh(int lane, int64_t start, const Seen& seen) const {
    const State state = this->state(layout_.span);
    float* logits = this->template at<float>(layout_.scores) + kGroup * kLanes;  // [lane, key]
    __m512 top[4];
    for (auto& x : top) x = _mm512_set1_ps(-INFINITY);
    for (int64_t tile = 2 * seen.first_chunk; tile < 2 * seen.end_chunk; ++tile) {
      __m512 scores[4];
      const float* from = this->template at<float>(layout_.scores) + tile * kResult;
      if constexpr (Walk::Derived::kScoresByRow)
        for (int i = 0; i < kCount; ++i) scores[i] = _mm512_load_ps(from + (lane + i) * 16);
      else
        turn(from + lane, scores);
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
    self().template weigh_from<kCount>(lane, seen, largest, total);
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
