// The walk of a tile's queries over its keys, for a Dot that multiplies tiles of 16 x 32 by 32 x 16 bfloat16 into 16 x 16
// float32. What is made of a group of keys, and what is known of the queries, is `Self`'s: ByLanes or ByRows.
//
// Scores are [key, query], as keys come straight from the pool as the left operand. Both forms compute the same bits:
// weights are summed over a chunk in one tree, and weighted values in pairs of the keys i and 16 + i.
#pragma once

#include <math.h>

#include "attention_ahead.h"
#include "attention_bytes.h"
#include "attention_keys.h"
#include "attention_layout.h"
#include "attention_math.h"

namespace pallas_kernels {
namespace {

template <class Dot, class Cache, class Self>
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
    if constexpr (Cache::kBytes)
      pack_bytes_of_queries();
    else
      pack_queries();
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
  using Keys::a_, Keys::tile_, Keys::num_lanes_, Keys::layout_, Keys::keys_, Keys::key_stride_;
  using Keys::min, Keys::max, Keys::dims_from;

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

  // The scores of the chunks [first, end) that are seen.
  void add_scores(int64_t t, const Seen& seen, int64_t first, int64_t end, float* to) const {
    const int64_t tile = max(seen.first_tile, first * (kChunk / kKeyTile));
    const int64_t end_tile = min(seen.end_tile, end * (kChunk / kKeyTile));
    if (tile >= end_tile) return;
    if constexpr (Cache::kBytes)
      return add_scores_of_bytes(t, tile, end_tile, to);
    else
      Dot::scores(keys_ + tile, end_tile - tile, key_stride_,
                  this->template at<uint16_t>(layout_.q) + t * layout_.steps * kTile, layout_.steps, to + tile * kResult);
  }

  // In units of the queries' and keys' scales, which are applied.
  void add_scores_of_bytes(int64_t t, int64_t tile, int64_t end_tile, float* to) const {
    const int8_t* q = this->template at<int8_t>(layout_.q) + t * planes() * layout_.byte_steps * kByteTile;
    int32_t* sums = this->template at<int32_t>(layout_.sums);
    const __m512 q_scales = _mm512_load_ps(this->template at<float>(layout_.q_scales) + t * kLanes);
    for (int64_t count; tile < end_tile; tile += count) {
      count = min(kMostOperands, end_tile - tile);
      for (int64_t plane = 0; plane < planes(); ++plane)
        Dot::template share_right<true>(keys_ + tile, count, key_stride_, kByteRow,
                                        q + plane * layout_.byte_steps * kByteTile, kByteTile, layout_.byte_steps,
                                        sums + plane * kMostOperands * kResult);
      const float* k_scales = this->template at<float>(layout_.k_scales) + tile * kKeyTile;
      for (int64_t key = 0; key < count * kKeyTile; ++key) {
        const __m512i high = _mm512_load_si512(sums + key * kLanes);
        const __m512i low = planes() == 1 ? _mm512_shuffle_i64x2(high, high, 0x4e)
                                          : _mm512_load_si512(sums + kMostOperands * kResult + key * kLanes);
        const __m512 score = _mm512_mul_ps(join(high, low), _mm512_set1_ps(k_scales[key]));
        _mm512_store_ps(to + tile * kResult + key * kLanes, _mm512_mul_ps(score, q_scales));
      }
    }
  }

  // Operands that the bytes of 16 lanes make: up to eight lanes have their high and their low bytes in one.
  int64_t planes() const { return num_lanes_ <= kLanes / 2 ? 1 : 2; }

  // The factor from scores, capped if they are to be, to logits in base 2.
  float factor() const { return (a_.soft_cap > 0 ? a_.soft_cap : a_.scale) * kLog2e; }

  // Which row of the results a lane is.
  int64_t result(int64_t lane) const { return int64_t{token_[lane]} * a_.heads + head_[lane]; }

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

  const uint16_t* query(int64_t lane) const {
    return a_.q + (int64_t{token_[lane]} * a_.heads + head_[lane]) * a_.head_dim;
  }

  // Right operands, plane by plane: [head_dim / 4, query, 4], zero beyond the head dim and in unused lanes.
  void pack_bytes_of_queries() {
    alignas(64) int8_t bytes[2][kLanes][kLargestHeadDim];
    for (int64_t t = 0; t < layout_.tiles; ++t) {
      float* scales = this->template at<float>(layout_.q_scales) + t * kLanes;
      _mm512_store_ps(scales, _mm512_setzero_ps());
      memset(bytes, 0, sizeof bytes);
      for (int i = 0; i < lanes_of(t); ++i)
        scales[i] = quantize_query(query(t * kLanes + i), a_.head_dim, bytes[0][i], bytes[1][i]);
      int8_t* to = this->template at<int8_t>(layout_.q) + t * planes() * layout_.byte_steps * kByteTile;
      for (int64_t plane = 0; plane < planes(); ++plane)
        for (int64_t step = 0; step < layout_.byte_steps; ++step, to += kByteTile) {
          __m512i rows[16];
          for (int i = 0; i < 16; ++i) {
            const int64_t from = planes() == 2 ? plane : i / (kLanes / 2);
            rows[i] = _mm512_load_si512(bytes[from][planes() == 2 ? i : i % (kLanes / 2)] + kByteRow * step);
          }
          transpose(rows);
          for (int i = 0; i < 16; ++i) _mm512_store_si512(to + kByteRow * i, rows[i]);
        }
    }
  }

  // Right operands: [head_dim / 2, query, 2], zero beyond the head dim and in unused lanes.
  void pack_queries() {
    for (int64_t t = 0; t < layout_.tiles; ++t) {
      const int used = lanes_of(t);
      for (int64_t step = 0; step < layout_.steps; ++step) {
        const __mmask32 mask = dims_from(step);
        __m512i rows[16];
        for (int i = 0; i < 16; ++i) rows[i] = _mm512_setzero_si512();
        for (int i = 0; i < used; ++i) {
          const int64_t lane = t * kLanes + i;
          rows[i] = _mm512_maskz_loadu_epi16(mask, query(lane) + 32 * step);
        }
        transpose(rows);
        uint16_t* to = this->template at<uint16_t>(layout_.q) + (t * layout_.steps + step) * kTile;
        for (int i = 0; i < 16; ++i) _mm512_store_si512(to + 32 * i, rows[i]);
      }
    }
  }
};

}  // namespace
}  // namespace pallas_kernels
