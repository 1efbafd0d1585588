// The walk of a tile's queries over its keys. How these are multiplied is the Cache's: BFloat16Walk's or ByteWalk's. What
// is made of a group of keys, and what is known of the queries, is in Rows or Lanes; `Self` is derived from both.
//
// Scores are [key, query], as keys come straight from the pool as the left operand, or [query, key] in Rows whose Self says
// so (kScoresByRow). Both forms compute the same bits: weights are summed over a chunk in one tree, and weighted values in pairs of the keys i and 16 + i.
#pragma once

#include <math.h>

#include "attention_ahead.h"
#include "attention_keys.h"
#include "attention_math.h"

namespace pallas_kernels {
namespace {

template <class Cache, class Self>
class TileWalk : protected GroupOfKeys<Cache> {
  using Keys = GroupOfKeys<Cache>;

 public:
  // next: the tile that the thread will probably attend after this one, whose keys are read ahead; or null.
  TileWalk(const Attention& a, const Tile& tile, const Tile* next, void* scratch)
      : Keys(a, tile, scratch), ahead_(a, tile, next), repeat_(a.heads / a.kv_heads),
        first_(this->template at<int32_t>(layout_.lanes_at)),
        last_(first_ + layout_.tiles * kLanes), token_(last_ + layout_.tiles * kLanes),
        head_(token_ + layout_.tiles * kLanes), bounds_(this->template at<Bounds>(layout_.bounds)) {}

  void run() {
    place_lanes();
    bound_lanes();
    self().pack_queries();
    const int64_t first_span = tile_.begin / kSpan, last_span = (tile_.end - 1) / kSpan;
    const bool one_span = first_span == last_span && !tile_.resumes && !tile_.pauses;
    if (tile_.resumes)
      resume();
    else if (!one_span)
      self().clear(layout_.all);
    for (int64_t span = first_span; span <= last_span; ++span) {
      const int64_t begin = max(tile_.begin, span * kSpan), end = min(tile_.end, (span + 1) * kSpan);
      if (!tile_.resumes || begin == span * kSpan) self().clear(layout_.span);
      for (int64_t group = begin / kGroup; group * kGroup < end; ++group) {
        const int64_t start = group * kGroup;
        self().add_group(start, max(begin, start), min(end, start + kGroup));
      }
      const bool complete = end == (span + 1) * kSpan || !tile_.pauses;
      if (!one_span && complete) self().merge_span();
    }
    if (tile_.pauses)
      pause();
    else
      self().finish(one_span ? layout_.span : layout_.all);
  }

 protected:
  using Derived = Self;
  using Keys::a_, Keys::tile_, Keys::num_lanes_, Keys::layout_, Keys::keys_, Keys::key_stride_;
  using Keys::min, Keys::max;

  Self& self() { return static_cast<Self&>(*this); }
  const Self& self() const { return static_cast<const Self&>(*this); }

  int lanes_of(int64_t t) const { return static_cast<int>(min(kLanes, num_lanes_ - t * kLanes)); }

  // Of the positions that 16 queries see: the first and the last of any, and of those that all see.
  struct Bounds {
    int32_t oldest = INT32_MAX, newest = -1, latest_first = -1, earliest_last = INT32_MAX;
  };

  // What 16 queries see of a group: tiles of keys, the chunks these lie in, and whether every query sees all of those.
  struct Seen {
    int64_t first_tile = 0, end_tile = 0, first_chunk = 0, end_chunk = 0;
    bool whole = false;
  };

  // Of the keys [low, high).
  Seen see(int64_t t, int64_t start, int64_t low, int64_t high) const {
    const Bounds& lanes = bounds_[t];
    low = max(low, lanes.oldest) - start;
    high = min(high, int64_t{lanes.newest} + 1) - start;
    if (low >= high) return {};
    const auto up = [](int64_t x, int64_t size) { return (x + size - 1) / size; };
    Seen seen{low / kKeyTile, up(high, kKeyTile), low / kChunk, up(high, kChunk)};
    seen.whole = lanes.latest_first <= start + seen.first_chunk * kChunk &&
                 lanes.earliest_last >= start + seen.end_chunk * kChunk - 1;
    return seen;
  }

  // The factor from scores, capped if they are to be, to logits in base 2.
  float factor() const { return (a_.soft_cap > 0 ? a_.soft_cap : a_.scale) * kLog2e; }

  // Which row of the results a lane is.
  int64_t result(int64_t lane) const { return int64_t{token_[lane]} * a_.heads + head_[lane]; }

  const uint16_t* query(int64_t lane) const {
    return a_.q + (int64_t{token_[lane]} * a_.heads + head_[lane]) * a_.head_dim;
  }

  // The sinks of the lanes of a tile, as logits in base 2.
  __m512 sinks(int64_t t) const {
    alignas(64) float sinks[kLanes] = {};
    for (int i = 0; i < lanes_of(t); ++i) sinks[i] = a_.sinks[head_[t * kLanes + i]];
    return _mm512_mul_ps(_mm512_load_ps(sinks), _mm512_set1_ps(kLog2e));
  }

  void write_lse(int64_t t, const float* largest, const float* total) const {
    for (int i = 0; i < lanes_of(t); ++i)
      a_.lse[result(t * kLanes + i)] = total[i] == 0 ? -INFINITY : (largest[i] + log2f(total[i])) * kLn2;
  }

  ReadAhead ahead_;
  const int64_t repeat_;
  int32_t *const first_, *const last_, *const token_, *const head_;
  Bounds* const bounds_;

 private:
  // Calls visit(theirs, mine) for each number of each lane's states: where it is kept, and here.
  template <typename Visit>
  void exchange(const Visit& visit) const {
    const int64_t size = state_floats(a_.head_dim);
    int64_t mine = 0;
    for (int64_t i = 0; i < tile_.num_queries; ++i) {
      const Queries& queries = tile_.queries[i];
      const int64_t lanes = queries.count * repeat_;
      for (int64_t lane = 0; lane < lanes; ++lane, ++mine) {
        const int64_t kept = queries.state + tile_.kv_head * tiles_of(lanes) + lane / kLanes;
        float* theirs = tile_.states + 2 * kept * size + lane % kLanes;
        float *all = this->template at<float>(layout_.all), *span = this->template at<float>(layout_.span);
        for (int64_t i = 0; i < 2 + a_.head_dim; ++i) {
          const int64_t here = self().state_index(mine, i);
          visit(theirs + i * kLanes, all + here);
          visit(theirs + size + i * kLanes, span + here);
        }
      }
    }
  }

  void resume() {
    self().clear(layout_.all);
    self().clear(layout_.span);
    exchange([](const float* theirs, float* mine) { *mine = *theirs; });
  }

  void pause() const {
    exchange([](float* theirs, const float* mine) { *theirs = *mine; });
  }

  // Token, head, and the first and last position that is visible, of each lane; unused lanes see nothing.
  void place_lanes() {
    int64_t lane = 0;
    for (int64_t i = 0; i < tile_.num_queries; ++i) {
      const Queries& queries = tile_.queries[i];
      const int32_t offset = a_.lengths[queries.row] - a_.query_start[queries.row + 1];
      for (int32_t token = queries.token; token < queries.token + queries.count; ++token)
        for (int64_t head = 0; head < repeat_; ++head, ++lane) {
          last_[lane] = token + offset;
          first_[lane] = a_.window ? static_cast<int32_t>(max(0, last_[lane] - a_.window + 1)) : 0;
          token_[lane] = token;
          head_[lane] = static_cast<int32_t>(tile_.kv_head * repeat_ + head);
        }
    }
    for (; lane < layout_.tiles * kLanes; ++lane) {
      first_[lane] = INT32_MAX;
      last_[lane] = -1;
    }
  }

  void bound_lanes() {
    for (int64_t t = 0; t < layout_.tiles; ++t) {
      Bounds& bounds = bounds_[t] = {};
      for (int64_t lane = t * kLanes; lane < t * kLanes + lanes_of(t); ++lane) {
        bounds.oldest = first_[lane] < bounds.oldest ? first_[lane] : bounds.oldest;
        bounds.latest_first = first_[lane] > bounds.latest_first ? first_[lane] : bounds.latest_first;
        bounds.newest = last_[lane] > bounds.newest ? last_[lane] : bounds.newest;
        bounds.earliest_last = last_[lane] < bounds.earliest_last ? last_[lane] : bounds.earliest_last;
      }
    }
  }
};

}  // namespace
}  // namespace pallas_kernels
