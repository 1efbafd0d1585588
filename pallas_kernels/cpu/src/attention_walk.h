// The walk of a tile's queries over its keys, for a Dot that multiplies tiles of 16 x 32 by 32 x 16 bfloat16 into 16 x 16
// float32. What is made of a group of keys, and what is known of the queries, is `Self`'s: ByLanes or ByRows.
//
// Scores are [key, query], as keys come straight from the pool as the left operand. Both forms compute the same bits:
// weights are summed over a chunk in one tree, and weighted values in pairs of the keys i and 16 + i.
#pragma once

#include <math.h>

#include "attention_ahead.h"
#include "attention_bytes.h"
#include "attention_layout.h"
#include "attention_math.h"

namespace pallas_kernels {
namespace {

inline int64_t count_lanes(const Attention& a, const Tile& tile) {
  int64_t queries = 0;
  for (int64_t i = 0; i < tile.num_queries; ++i) queries += tile.queries[i].count;
  return queries * (a.heads / a.kv_heads);
}

struct BFloat16Cache {
  using Number = uint16_t;
  static constexpr bool kBytes = false;
};

struct Int8Cache {
  using Number = int8_t;
  static constexpr bool kBytes = true;
};

template <class Dot, class Cache, class Self>
class TileWalk {
  using Number = typename Cache::Number;

 public:
  // next: the tile that the thread will probably attend after this one, whose keys are read ahead; or null.
  TileWalk(const Attention& a, const Tile& tile, const Tile* next, void* scratch)
      : a_(a), tile_(tile), ahead_(a, tile, next), repeat_(a.heads / a.kv_heads), num_lanes_(count_lanes(a, tile)),
        layout_(a, num_lanes_), base_(static_cast<char*>(scratch)), first_(at<int32_t>(layout_.lanes_at)),
        last_(first_ + layout_.tiles * kLanes), token_(last_ + layout_.tiles * kLanes),
        head_(token_ + layout_.tiles * kLanes), bounds_(at<Bounds>(layout_.bounds)) {}

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
  Self& self() { return static_cast<Self&>(*this); }
  const Self& self() const { return static_cast<const Self&>(*this); }

  template <typename T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  static int64_t min(int64_t x, int64_t y) { return x < y ? x : y; }
  static int64_t max(int64_t x, int64_t y) { return x > y ? x : y; }

  int lanes_of(int64_t t) const { return static_cast<int>(min(kLanes, num_lanes_ - t * kLanes)); }

  __mmask32 dims_from(int64_t step) const {
    const int64_t rest = a_.head_dim - 32 * step;
    return rest >= 32 ? ~__mmask32{0} : (__mmask32{1} << rest) - 1;
  }

  // Of the positions that 16 queries see: the first and the last of any, and of those that all see.
  struct Bounds {
    int32_t oldest = INT32_MAX, newest = -1, latest_first = -1, earliest_last = INT32_MAX;
  };

  int64_t slot(int64_t position) const { return pallas_kernels::slot(a_, tile_, position); }

  // Left operands of the scores: rows of the pool where 16 of them lie together, else a copy, zero beyond the head dim.
  void point_at_keys(int64_t start, int64_t low, int64_t high) {
    if constexpr (Cache::kBytes) copy_scales(start, low, high);
    const int64_t row = 64 / sizeof(Number), padded = (a_.head_dim + row - 1) / row * row;
    const bool in_place = a_.block_size % kKeyTile == 0 && a_.head_dim == padded;
    key_stride_ = padded;
    Number* copy = at<Number>(layout_.keys);
    for (int64_t tile = (low - start) / kKeyTile; tile * kKeyTile < high - start; ++tile) {
      const int64_t position = start + tile * kKeyTile;
      if (in_place) {
        keys_[tile] = static_cast<const Number*>(a_.k_pool) + slot(position) * a_.head_dim;
        continue;
      }
      Number* to = copy + tile * kKeyTile * key_stride_;
      keys_[tile] = to;
      for (int64_t p = max(position, low); p < min(position + kKeyTile, high); ++p) {
        const Number* from = static_cast<const Number*>(a_.k_pool) + slot(p) * a_.head_dim;
        for (int64_t dim = 0; dim < padded; dim += row)
          _mm512_store_si512(to + (p - position) * key_stride_ + dim, load_dims(from, dim));
      }
    }
  }

  // 64 bytes of numbers from a dim on, zero beyond the head dim.
  __m512i load_dims(const uint16_t* from, int64_t dim) const {
    return _mm512_maskz_loadu_epi16(dims_from(dim / 32), from + dim);
  }
  __m512i load_dims(const int8_t* from, int64_t dim) const {
    const int64_t rest = a_.head_dim - dim;
    return _mm512_maskz_loadu_epi8(rest >= 64 ? ~__mmask64{0} : (__mmask64{1} << rest) - 1, from + dim);
  }

  // The scales of the group from position `start` on, zero outside [low, high).
  void copy_scales(int64_t start, int64_t low, int64_t high) {
    float *keys = at<float>(layout_.k_scales), *values = at<float>(layout_.v_scales);
    for (int64_t i = 0; i < kGroup; i += kLanes) {
      _mm512_store_ps(keys + i, _mm512_setzero_ps());
      _mm512_store_ps(values + i, _mm512_setzero_ps());
    }
    while (low < high) {
      const int64_t count = min(high - low, a_.block_size - low % a_.block_size), from = slot(low);
      memcpy(keys + low - start, a_.k_scales + from, count * sizeof(float));
      memcpy(values + low - start, a_.v_scales + from, count * sizeof(float));
      low += count;
    }
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < kGroup; i += kLanes) {
      const __m512 x = _mm512_load_ps(values + i);
      sum = _mm512_add_ps(sum, _mm512_sub_ps(x, x));
    }
    flaw_ = _mm512_reduce_add_ps(sum);
  }

  // Rows of values of the keys [low, high) in the chunk from position `start` on, null for others; whether none is.
  bool find_values(int64_t start, int64_t low, int64_t high, const Number* (&rows)[kChunk]) const {
    for (int64_t i = 0; i < kChunk;) {
      const int64_t position = start + i;
      if (position < low || position >= high) {
        rows[i++] = nullptr;
        continue;
      }
      const int64_t together = min(min(kChunk - i, high - position), a_.block_size - position % a_.block_size);
      const Number* from = static_cast<const Number*>(a_.v_pool) + slot(position) * a_.head_dim;
      for (int64_t j = 0; j < together; ++j) rows[i++] = from + j * a_.head_dim;
    }
    return start >= low && start + kChunk <= high;
  }

  // Bytes of values of four keys, for 64 dims; zero for those that are null.
  void load_quad(const Number* const* rows, int64_t step, __m512i (&x)[4]) const {
    for (int i = 0; i < 4; ++i) x[i] = rows[i] ? load_dims(rows[i], kByteRow * step) : _mm512_setzero_si512();
  }

  // Pairs of values of the keys i and 16 + i, for 32 dims: dims 0-3, 8-11, 16-19, 24-27 in `low`, the others in `high`.
  template <bool kWhole>
  void pair_values(const uint16_t* const* rows, int i, int64_t step, __mmask32 mask, __m512i& low, __m512i& high) const {
    const auto load = [=](const uint16_t* row) {
      return kWhole || row ? _mm512_maskz_loadu_epi16(mask, row + 32 * step) : _mm512_setzero_si512();
    };
    const __m512i x = load(rows[i]), y = load(rows[kKeyTile + i]);
    low = _mm512_unpacklo_epi16(x, y);
    high = _mm512_unpackhi_epi16(x, y);
  }

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
      Dot::scores(keys_ + tile, end_tile - tile, key_stride_, at<uint16_t>(layout_.q) + t * layout_.steps * kTile,
                layout_.steps, to + tile * kResult);
  }

  // In units of the queries' and keys' scales, which are applied.
  void add_scores_of_bytes(int64_t t, int64_t tile, int64_t end_tile, float* to) const {
    const int8_t* q = at<int8_t>(layout_.q) + t * planes() * layout_.byte_steps * kByteTile;
    int32_t* sums = at<int32_t>(layout_.sums);
    const __m512 q_scales = _mm512_load_ps(at<float>(layout_.q_scales) + t * kLanes);
    for (int64_t count; tile < end_tile; tile += count) {
      count = min(kMostOperands, end_tile - tile);
      for (int64_t plane = 0; plane < planes(); ++plane)
        Dot::template share_right<true>(keys_ + tile, count, key_stride_, kByteRow, q + plane * layout_.byte_steps * kByteTile, kByteTile,
                         layout_.byte_steps, sums + plane * kMostOperands * kResult);
      const float* k_scales = at<float>(layout_.k_scales) + tile * kKeyTile;
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

  const Attention& a_;
  const Tile& tile_;
  ReadAhead ahead_;
  const int64_t repeat_, num_lanes_;
  const Layout layout_;
  char* const base_;
  int32_t *const first_, *const last_, *const token_, *const head_;

  Bounds* const bounds_;
  const Number* keys_[kGroup / kKeyTile];
  int64_t key_stride_ = 0;
  float flaw_ = 0;  // not a number where a value of the group is none, else zero

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
        float *all = at<float>(layout_.all), *span = at<float>(layout_.span);
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
      float* scales = at<float>(layout_.q_scales) + t * kLanes;
      _mm512_store_ps(scales, _mm512_setzero_ps());
      memset(bytes, 0, sizeof bytes);
      for (int i = 0; i < lanes_of(t); ++i)
        scales[i] = quantize_query(query(t * kLanes + i), a_.head_dim, bytes[0][i], bytes[1][i]);
      int8_t* to = at<int8_t>(layout_.q) + t * planes() * layout_.byte_steps * kByteTile;
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
        uint16_t* to = at<uint16_t>(layout_.q) + (t * layout_.steps + step) * kTile;
        for (int i = 0; i < 16; ++i) _mm512_store_si512(to + 32 * i, rows[i]);
      }
    }
  }
};

}  // namespace
}  // namespace pallas_kernels
