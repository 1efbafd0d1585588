// Attention with a query in each lane: maxima, exponentials and sums run down the keys. For many queries.
#pragma once

#include "attention_walk.h"

namespace pallas_kernels {
namespace {

// What is known of 16 queries after some keys: largest logit (base 2), sum of weights, weighted sum of values.
struct State {
  explicit State(float* p) : largest(p), total(p + kLanes), values(p + 2 * kLanes) {}

  void clear(int64_t head_dim) const {
    _mm512_store_ps(largest, _mm512_set1_ps(kLowest));
    for (float* p = total; p < values + head_dim * kLanes; p += kLanes) _mm512_store_ps(p, _mm512_setzero_ps());
  }

  float *largest, *total, *values;
};

// Takes the keys that `part` knows into `all`.
inline void merge(const State& all, const State& part, int64_t head_dim) {
  const __m512 mine = _mm512_load_ps(all.largest), other = _mm512_load_ps(part.largest);
  const __m512 largest = _mm512_max_ps(mine, other);
  const __m512 f = exp2(_mm512_sub_ps(mine, largest)), g = exp2(_mm512_sub_ps(other, largest));
  _mm512_store_ps(all.largest, largest);
  for (int64_t i = -1; i < head_dim; ++i) {  // the total lies before the values
    float* p = all.values + i * kLanes;
    const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(part.values + i * kLanes), g);
    _mm512_store_ps(p, _mm512_fmadd_ps(_mm512_load_ps(p), f, scaled));
  }
}

// Walk: BFloat16Walk or ByteWalk, whose `Self` lays out values and weights.
template <class Walk>
class Lanes : public Walk {
 public:
  using Walk::Walk;

  // Where in the states the number `i` of a lane is.
  int64_t state_index(int64_t lane, int64_t i) const {
    return lane / kLanes * state_floats(a_.head_dim) + i * kLanes + lane % kLanes;
  }

  void clear(size_t offset) const {
    for (int64_t t = 0; t < layout_.tiles; ++t) state(offset, t).clear(a_.head_dim);
  }

  void merge_span() const {
    for (int64_t t = 0; t < layout_.tiles; ++t) merge(state(layout_.all, t), state(layout_.span, t), a_.head_dim);
  }

  void finish(size_t offset) const {
    for (int64_t t = 0; t < layout_.tiles; ++t) finish(t, state(offset, t));
  }

  // The keys [low, high), which lie in the group from position `start` on.
  void add_group(int64_t start, int64_t low, int64_t high) {
    this->point_at_keys(start, low, high);
    self().pack(start, low, high);
    if constexpr (Walk::Derived::kPairs)
      add_to_pairs(start, low, high);
    else
      add_to_each(start, low, high);
  }

 protected:
  using Walk::a_, Walk::layout_, Walk::self;
  using Seen = typename Walk::Seen;

  State state(size_t offset, int64_t t) const {
    return State(this->template at<float>(offset) + t * state_floats(a_.head_dim));
  }

  float* scores_of(int64_t t) const { return this->template at<float>(layout_.scores) + t % 2 * (kGroup * kLanes); }

  // What turns scores into weights, and the sum of those so far.
  struct Weights {
    __m512 scale, largest, sum;
  };

  // The weights of a chunk. Calls keep(i, x, y) with those of the keys i and 16 + i.
  template <typename Keep>
  static void weigh(const float* scores, Weights& weights, const Keep& keep) {
    const auto weight = [&](const float* p) {
      return exp2(_mm512_fmsub_ps(_mm512_load_ps(p), weights.scale, weights.largest));
    };
    const auto weigh_pair = [&](int i) {
      const __m512 x = weight(scores + i * kLanes), y = weight(scores + (kKeyTile + i) * kLanes);
      keep(i, x, y);
      return _mm512_add_ps(x, y);
    };
    const auto weigh_four = [&](int i) {
      const __m512 low = _mm512_add_ps(weigh_pair(i), weigh_pair(i + 1));
      return _mm512_add_ps(low, _mm512_add_ps(weigh_pair(i + 2), weigh_pair(i + 3)));
    };
    const __m512 low = _mm512_add_ps(weigh_four(0), weigh_four(4));
    weights.sum = _mm512_add_ps(weights.sum, _mm512_add_ps(low, _mm512_add_ps(weigh_four(8), weigh_four(12))));
  }

 private:
  // While one tile of queries is weighed, the scores of the next one are computed.
  void add_to_each(int64_t start, int64_t low, int64_t high) {
    Seen seen, seen_next = this->see(0, start, low, high);
    this->add_scores(0, seen_next, 0, kGroup / kChunk, scores_of(0));
    for (int64_t t = 0; t < layout_.tiles; ++t) {
      seen = seen_next;
      seen_next = t + 1 < layout_.tiles ? this->see(t + 1, start, low, high) : Seen{};
      add_keys(t, start, seen, seen_next);
    }
  }

  // Lets 16 queries see keys whose scores are known; computes the next 16 queries' scores in between, so that tile
  // products and exponentials are under way together.
  void add_keys(int64_t t, int64_t start, const Seen& seen, const Seen& seen_next) {
    if (seen.first_chunk == seen.end_chunk) return this->add_scores(t + 1, seen_next, 0, kGroup / kChunk, scores_of(t + 1));
    Weights weights = prepare(t, start, seen);
    self().add_values(t, seen, seen_next, weights, state(layout_.span, t));
  }

  // The same for two tiles of queries at a time, which share each load of keys and values.
  void add_to_pairs(int64_t start, int64_t low, int64_t high) {
    for (int64_t t = 0; t < layout_.tiles; t += 2) {
      const Seen seen[2] = {this->see(t, start, low, high),
                            t + 1 < layout_.tiles ? this->see(t + 1, start, low, high) : Seen{}};
      self().add_pair_scores(t, seen);
      for (int i = 0; i < 2; ++i) {
        if (seen[i].first_chunk == seen[i].end_chunk) continue;
        Weights weights = prepare(t + i, start, seen[i]);
        self().weigh_chunks(t + i, seen[i], weights);
        const State state = this->state(layout_.span, t + i);
        _mm512_store_ps(state.total, _mm512_add_ps(_mm512_load_ps(state.total), weights.sum));
      }
      self().add_pair_values(t, seen);
    }
  }

  // Turns the scores of 16 queries into what their weights follow from.
  Weights prepare(int64_t t, int64_t start, const Seen& seen) const {
    float* scores = scores_of(t);
    if (a_.soft_cap > 0) {
      const __m512 inner = _mm512_set1_ps(a_.scale / a_.soft_cap);
      for (int64_t key = seen.first_tile * kKeyTile; key < seen.end_tile * kKeyTile; ++key) {
        float* p = scores + key * kLanes;
        _mm512_store_ps(p, tanh(_mm512_mul_ps(_mm512_load_ps(p), inner)));
      }
    }
    if (!seen.whole) hide(t, start, scores, seen.first_chunk * kChunk, seen.end_chunk * kChunk);
    return raise(scores, seen.first_chunk * kChunk, seen.end_chunk * kChunk, state(layout_.span, t));
  }

  void hide(int64_t t, int64_t start, float* scores, int64_t first_key, int64_t end_key) const {
    const __m512i first = _mm512_loadu_si512(this->first_ + t * kLanes), last = _mm512_loadu_si512(this->last_ + t * kLanes);
    const __m512 never = _mm512_set1_ps(-INFINITY);
    for (int64_t key = first_key; key < end_key; ++key) {
      const __m512i position = _mm512_set1_epi32(static_cast<int>(start + key));
      const __mmask16 seen = _mm512_mask_cmple_epi32_mask(_mm512_cmpge_epi32_mask(position, first), position, last);
      float* p = scores + key * kLanes;
      _mm512_store_ps(p, _mm512_mask_loadu_ps(never, seen, p));
    }
  }

  // Finds the largest score so far; brings what the state holds to the same base.
  Weights raise(const float* scores, int64_t first_key, int64_t end_key, const State& state) const {
    __m512 top[4];
    for (auto& x : top) x = _mm512_set1_ps(-INFINITY);
    for (int64_t key = first_key; key < end_key; key += 4)
      for (int i = 0; i < 4; ++i) top[i] = _mm512_max_ps(top[i], _mm512_load_ps(scores + (key + i) * kLanes));
    const __m512 before = _mm512_load_ps(state.largest), scale = _mm512_set1_ps(this->factor());
    const __m512 highest = _mm512_max_ps(_mm512_max_ps(top[0], top[1]), _mm512_max_ps(top[2], top[3]));
    const __m512 largest = _mm512_max_ps(before, _mm512_mul_ps(highest, scale));
    if (_mm512_cmp_ps_mask(largest, before, _CMP_NEQ_UQ)) {
      const __m512 shrink = exp2(_mm512_sub_ps(before, largest));
      _mm512_store_ps(state.largest, largest);
      for (float* p = state.total; p < state.values + a_.head_dim * kLanes; p += kLanes)
        _mm512_store_ps(p, _mm512_mul_ps(_mm512_load_ps(p), shrink));
    }
    return {scale, largest, _mm512_setzero_ps()};
  }

  void finish(int64_t t, const State& state) const {
    const int used = this->lanes_of(t);
    if (a_.sinks) add_sinks(t, state);
    const __m512 total = _mm512_load_ps(state.total);
    const __mmask16 some = _mm512_cmp_ps_mask(total, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    const __m512 share = _mm512_maskz_div_ps(some, _mm512_set1_ps(1.0f), total);
    // Adding zero makes a negative zero positive, as the merge of spans does.
    for (int64_t dim = 0; dim < a_.head_dim; dim += 16) {
      __m512i rows[16];
      for (int i = 0; i < 16; ++i)
        rows[i] = _mm512_castps_si512(_mm512_mul_ps(
            _mm512_add_ps(_mm512_load_ps(state.values + (dim + i) * kLanes), _mm512_setzero_ps()), share));
      transpose(rows);
      for (int i = 0; i < used; ++i)
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(a_.out + this->result(t * kLanes + i) * a_.head_dim + dim),
                            (__m256i)_mm512_cvtneps_pbh(_mm512_castsi512_ps(rows[i])));
    }
    this->write_lse(t, state.largest, state.total);
  }

  void add_sinks(int64_t t, const State& state) const {
    const __m512 sink = this->sinks(t);
    const __m512 before = _mm512_load_ps(state.largest), largest = _mm512_max_ps(before, sink);
    const __m512 shrink = exp2(_mm512_sub_ps(before, largest));
    _mm512_store_ps(state.largest, largest);
    _mm512_store_ps(state.total, _mm512_fmadd_ps(_mm512_load_ps(state.total), shrink,
                                                 exp2(_mm512_sub_ps(sink, largest))));
    for (float* p = state.values; p < state.values + a_.head_dim * kLanes; p += kLanes)
      _mm512_store_ps(p, _mm512_mul_ps(_mm512_load_ps(p), shrink));
  }
};

}  // namespace
}  // namespace pallas_kernels
