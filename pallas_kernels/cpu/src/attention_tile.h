// The attention of one tile, for a Dot that multiplies tiles of 16 x 32 by 32 x 16 bfloat16 into 16 x 16 float32.
//
// Scores are held transposed, [key, query]: keys come straight from the pool as the left operand, and maxima,
// exponentials and sums run down the keys with a query in each lane. So are the weighted values, [head_dim, query].
// Included by one source per instruction set, and by nothing else.
#pragma once

#include <immintrin.h>
#include <math.h>

#include "attention.h"

namespace pallas_kernels {
namespace {

constexpr int kKeyTile = 16;                    // keys in a left operand of the scores
constexpr int kChunk = 32;                      // keys in a right operand of the weighted values
constexpr int kTile = 512;                      // bfloat16 numbers in an operand tile
constexpr int kResult = 256;                    // float32 numbers in a result tile
constexpr float kLowest = -1e30f;               // maximum before any key; finite: a difference of two is not NaN
constexpr float kLog2e = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// Denormals are zero in every thread, as they are in the tile units.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(0x9fc0); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
};

// 2^x, relative error below 3e-6, a thousandth of what rounding the weights takes; exactly 0 for -inf.
inline __m512 exp2(__m512 x) {
  const __m512 f = _mm512_reduce_ps(x, 0x09);  // x - floor(x)
  __m512 p = _mm512_set1_ps(0x1.b7f5cep-7f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.abf8f8p-5f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.ee244p-3f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.62d6c6p-1f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, x);
}

// tanh(x) = 1 - 2 / (e^2x + 1), absolute error below 2e-6.
inline __m512 tanh(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f), limit = _mm512_set1_ps(30.0f);
  x = _mm512_min_ps(_mm512_max_ps(x, _mm512_sub_ps(_mm512_setzero_ps(), limit)), limit);
  const __m512 e = exp2(_mm512_mul_ps(x, _mm512_set1_ps(2 * kLog2e)));
  return _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(e, one)));
}

// Transposes 16 x 16 numbers of 32 bits.
inline void transpose(__m512i r[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// Where each part of a tile's scratch memory begins.
struct Layout {
  Layout(const Attention& a, int64_t lanes) {
    tiles = tiles_of(lanes);
    steps = (a.head_dim + 31) / 32;
    const int64_t padded_dim = 32 * steps, value_tiles = a.head_dim / 16;
    size_t at = 0;
    const auto take = [&at](size_t bytes) {
      const size_t here = at;
      at += (bytes + 63) / 64 * 64;
      return here;
    };
    lanes_at = take(tiles * kLanes * 4 * sizeof(int32_t));
    bounds = take(tiles * 4 * sizeof(int32_t));
    q = take(tiles * steps * kTile * sizeof(uint16_t));
    keys = take(kGroup * padded_dim * sizeof(uint16_t));
    values = take(kGroup / kChunk * value_tiles * kTile * sizeof(uint16_t));
    scores = take(2 * kGroup * kLanes * sizeof(float));
    weights = take(kGroup / kChunk * kTile * sizeof(uint16_t));
    span = take(tiles * state_floats(a.head_dim) * sizeof(float));
    all = take(tiles * state_floats(a.head_dim) * sizeof(float));
    bytes = at;
  }

  int64_t tiles, steps;
  size_t lanes_at, bounds, q, keys, values, scores, weights, span, all, bytes;
};

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

template <class Dot>
class TileAttention {
 public:
  // next: the tile that the thread will probably attend after this one, whose keys are read ahead; or null.
  TileAttention(const Attention& a, const Tile& tile, const Tile* next, void* scratch)
      : a_(a), tile_(tile), next_(next), repeat_(a.heads / a.kv_heads), num_lanes_(count_lanes()), layout_(a, num_lanes_),
        base_(static_cast<char*>(scratch)), first_(at<int32_t>(layout_.lanes_at)),
        last_(first_ + layout_.tiles * kLanes), token_(last_ + layout_.tiles * kLanes),
        head_(token_ + layout_.tiles * kLanes), bounds_(at<Bounds>(layout_.bounds)) {}

  void run() {
    place_lanes();
    bound_lanes();
    pack_queries();
    const int64_t first_span = tile_.begin / kSpan, last_span = (tile_.end - 1) / kSpan;
    const bool one_span = first_span == last_span && !tile_.resumes && !tile_.pauses;
    if (tile_.resumes)
      resume();
    else if (!one_span)
      clear(layout_.all);
    for (int64_t span = first_span; span <= last_span; ++span) {
      const int64_t begin = max(tile_.begin, span * kSpan), end = min(tile_.end, (span + 1) * kSpan);
      if (!tile_.resumes || begin == span * kSpan) clear(layout_.span);
      for (int64_t group = begin / kGroup; group * kGroup < end; ++group) add_group(group * kGroup, begin, end);
      const bool complete = end == (span + 1) * kSpan || !tile_.pauses;
      if (one_span || !complete) continue;
      for (int64_t t = 0; t < layout_.tiles; ++t) merge(state(layout_.all, t), state(layout_.span, t), a_.head_dim);
    }
    if (tile_.pauses) return pause();
    for (int64_t t = 0; t < layout_.tiles; ++t) finish(t, state(one_span ? layout_.span : layout_.all, t));
  }

 private:
  template <typename T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  static int64_t min(int64_t x, int64_t y) { return x < y ? x : y; }
  static int64_t max(int64_t x, int64_t y) { return x > y ? x : y; }

  State state(size_t offset, int64_t t) const { return State(at<float>(offset) + t * state_floats(a_.head_dim)); }
  void clear(size_t offset) const {
    for (int64_t t = 0; t < layout_.tiles; ++t) state(offset, t).clear(a_.head_dim);
  }

  int64_t count_lanes() const {
    int64_t queries = 0;
    for (int64_t i = 0; i < tile_.num_queries; ++i) queries += tile_.queries[i].count;
    return queries * repeat_;
  }

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
        const int64_t here = mine / kLanes * size + mine % kLanes;
        float *all = at<float>(layout_.all) + here, *span = at<float>(layout_.span) + here;
        for (int64_t i = 0; i < size; i += kLanes) visit(theirs + i, all + i);
        for (int64_t i = 0; i < size; i += kLanes) visit(theirs + size + i, span + i);
      }
    }
  }

  void resume() const {
    clear(layout_.all);
    clear(layout_.span);
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

  // Of the positions that 16 queries see: the first and the last of any, and of those that all see.
  struct Bounds {
    int32_t oldest = INT32_MAX, newest = -1, latest_first = -1, earliest_last = INT32_MAX;
  };

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

  int lanes_of(int64_t t) const { return static_cast<int>(min(kLanes, num_lanes_ - t * kLanes)); }

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
          rows[i] = _mm512_maskz_loadu_epi16(
              mask, a_.q + (int64_t{token_[lane]} * a_.heads + head_[lane]) * a_.head_dim + 32 * step);
        }
        transpose(rows);
        uint16_t* to = at<uint16_t>(layout_.q) + (t * layout_.steps + step) * kTile;
        for (int i = 0; i < 16; ++i) _mm512_store_si512(to + 32 * i, rows[i]);
      }
    }
  }

  __mmask32 dims_from(int64_t step) const {
    const int64_t rest = a_.head_dim - 32 * step;
    return rest >= 32 ? ~__mmask32{0} : (__mmask32{1} << rest) - 1;
  }

  // Where a position's keys, and values, begin in their pool.
  int64_t slot(const Tile& tile, int64_t position) const {
    const uint32_t size = static_cast<uint32_t>(a_.block_size), p = static_cast<uint32_t>(position);
    const int64_t block = a_.tables[tile.queries[0].row * a_.table_width + p / size];
    return ((block * a_.kv_heads + tile.kv_head) * a_.block_size + p % size) * a_.head_dim;
  }
  int64_t slot(int64_t position) const { return slot(tile_, position); }

  // The keys [begin, end) that lie in the group from position `start` on.
  void add_group(int64_t start, int64_t begin, int64_t end) {
    const int64_t low = max(begin, start), high = min(end, start + kGroup);
    find_next_keys(start + kGroup);
    point_at_keys(start, low, high);
    pack_values(start, low, high);
    // While one tile of queries is weighed, the scores of the next one are computed.
    Seen seen, seen_next = see(0, start, low, high);
    add_scores(0, seen_next, 0, kGroup / kChunk);
    for (int64_t t = 0; t < layout_.tiles; ++t) {
      seen = seen_next;
      seen_next = t + 1 < layout_.tiles ? see(t + 1, start, low, high) : Seen{};
      add_keys(t, start, seen, seen_next);
    }
  }

  // The keys that are read ahead: those of this tile from `start` on, or else the first of the next tile.
  void find_next_keys(int64_t start) {
    ahead_ = start < tile_.end ? &tile_ : next_;
    if (!ahead_) return;
    ahead_low_ = ahead_ == &tile_ ? start : ahead_->begin;
    ahead_high_ = min(ahead_->end, (ahead_low_ / kGroup + 1) * kGroup);
  }

  // Reads a chunk's worth of them.
  void read_ahead() {
    if (!ahead_) return;
    const int64_t lines = (a_.head_dim * 2 + 63) / 64, high = min(ahead_high_, ahead_low_ + kChunk);
    while (ahead_low_ < high) {
      const int64_t count = min(high - ahead_low_, a_.block_size - ahead_low_ % a_.block_size);
      const int64_t from = slot(*ahead_, ahead_low_);
      const char *k = reinterpret_cast<const char*>(a_.k_pool + from), *v = reinterpret_cast<const char*>(a_.v_pool + from);
      for (int64_t i = 0; i < count * lines; ++i) {
        _mm_prefetch(k + 64 * i, _MM_HINT_T1);
        _mm_prefetch(v + 64 * i, _MM_HINT_T1);
      }
      ahead_low_ += count;
    }
  }

  // Left operands of the scores: rows of the pool where 16 of them lie together, else a copy, zero beyond the head dim.
  void point_at_keys(int64_t start, int64_t low, int64_t high) {
    const bool in_place = a_.block_size % kKeyTile == 0 && a_.head_dim % 32 == 0;
    key_stride_ = in_place ? a_.head_dim : 32 * layout_.steps;
    uint16_t* copy = at<uint16_t>(layout_.keys);
    for (int64_t tile = (low - start) / kKeyTile; tile * kKeyTile < high - start; ++tile) {
      const int64_t position = start + tile * kKeyTile;
      if (in_place) {
        keys_[tile] = a_.k_pool + slot(position);
        continue;
      }
      uint16_t* to = copy + tile * kKeyTile * key_stride_;
      keys_[tile] = to;
      for (int64_t p = max(position, low); p < min(position + kKeyTile, high); ++p) {
        const uint16_t* from = a_.k_pool + slot(p);
        for (int64_t step = 0; step < layout_.steps; ++step)
          _mm512_store_si512(to + (p - position) * key_stride_ + 32 * step,
                             _mm512_maskz_loadu_epi16(dims_from(step), from + 32 * step));
      }
    }
  }

  // Left operands of the weighted values: per 32 keys and 16 dims [dim, key], zero for keys outside [low, high).
  void pack_values(int64_t start, int64_t low, int64_t high) {
    const int64_t value_tiles = a_.head_dim / 16;
    for (int64_t chunk = 0; chunk < kGroup / kChunk; ++chunk) {
      read_ahead();
      if ((chunk + 1) * kChunk <= low - start || chunk * kChunk >= high - start) continue;
      const uint16_t* rows[kChunk];
      for (int64_t i = 0; i < kChunk;) {
        const int64_t position = start + chunk * kChunk + i;
        if (position < low || position >= high) {
          rows[i++] = nullptr;
          continue;
        }
        const int64_t together = min(min(kChunk - i, high - position), a_.block_size - position % a_.block_size);
        const uint16_t* from = a_.v_pool + slot(position);
        for (int64_t j = 0; j < together; ++j) rows[i++] = from + j * a_.head_dim;
      }
      uint16_t* to = at<uint16_t>(layout_.values) + chunk * value_tiles * kTile;
      const bool whole = start + chunk * kChunk >= low && start + (chunk + 1) * kChunk <= high;
      for (int64_t step = 0; step < layout_.steps; ++step) {
        if (whole)
          pack_values<true>(rows, step, to + 2 * step * kTile);
        else
          pack_values<false>(rows, step, to + 2 * step * kTile);
      }
    }
  }

  template <bool kWhole>
  void pack_values(const uint16_t* const* rows, int64_t step, uint16_t* to) const {
    const __mmask32 mask = dims_from(step);
    __m512i low[16], high[16];
    for (int i = 0; i < 16; ++i) {
      const uint16_t *even = rows[2 * i], *odd = rows[2 * i + 1];
      const __m512i x = kWhole || even ? _mm512_maskz_loadu_epi16(mask, even + 32 * step) : _mm512_setzero_si512();
      const __m512i y = kWhole || odd ? _mm512_maskz_loadu_epi16(mask, odd + 32 * step) : _mm512_setzero_si512();
      low[i] = _mm512_unpacklo_epi16(x, y);   // dims 0-3, 8-11, 16-19, 24-27
      high[i] = _mm512_unpackhi_epi16(x, y);  // dims 4-7, 12-15, 20-23, 28-31
    }
    transpose(low);
    transpose(high);
    const int dims = static_cast<int>(min(32, a_.head_dim - 32 * step));
    for (int i = 0; i < 16; ++i) {
      const int dim = i / 4 * 8 + i % 4;
      if (dim < dims) _mm512_store_si512(to + 32 * dim, low[i]);
      if (dim + 4 < dims) _mm512_store_si512(to + 32 * (dim + 4), high[i]);
    }
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

  float* scores_of(int64_t t) const { return at<float>(layout_.scores) + t % 2 * (kGroup * kLanes); }

  // The scores of the chunks [first, end) that are seen.
  void add_scores(int64_t t, const Seen& seen, int64_t first, int64_t end) const {
    const int64_t tile = max(seen.first_tile, first * (kChunk / kKeyTile));
    const int64_t end_tile = min(seen.end_tile, end * (kChunk / kKeyTile));
    if (tile >= end_tile) return;
    Dot::scores(keys_ + tile, end_tile - tile, key_stride_, at<uint16_t>(layout_.q) + t * layout_.steps * kTile,
                layout_.steps, scores_of(t) + tile * kResult);
  }

  // Lets 16 queries see keys whose scores are known; computes the next 16 queries' scores in between, so that tile
  // products and exponentials are under way together.
  void add_keys(int64_t t, int64_t start, const Seen& seen, const Seen& seen_next) {
    if (seen.first_chunk == seen.end_chunk) return add_scores(t + 1, seen_next, 0, kGroup / kChunk);
    float* scores = scores_of(t);
    float factor = a_.scale * kLog2e;
    if (a_.soft_cap > 0) {
      factor = a_.soft_cap * kLog2e;
      const __m512 inner = _mm512_set1_ps(a_.scale / a_.soft_cap);
      for (int64_t key = seen.first_tile * kKeyTile; key < seen.end_tile * kKeyTile; ++key) {
        float* p = scores + key * kLanes;
        _mm512_store_ps(p, tanh(_mm512_mul_ps(_mm512_load_ps(p), inner)));
      }
    }
    if (!seen.whole) hide(t, start, scores, seen.first_chunk * kChunk, seen.end_chunk * kChunk);
    const State state = this->state(layout_.span, t);
    Weights weights = raise(scores, seen.first_chunk * kChunk, seen.end_chunk * kChunk, factor, state);
    const int64_t tiles = a_.head_dim / 16, at_once = min(tiles, Dot::kMostSums);
    uint16_t* to = at<uint16_t>(layout_.weights);
    const uint16_t* values = at<uint16_t>(layout_.values);
    Dot::load_sums(state.values, at_once);
    for (int64_t chunk = 0; chunk <= kGroup / kChunk; ++chunk) {
      add_scores(t + 1, seen_next, chunk, chunk + 1);
      if (chunk > seen.first_chunk && chunk <= seen.end_chunk)
        Dot::add_values(values + (chunk - 1) * tiles * kTile, at_once, to + (chunk - 1) * kTile, state.values);
      if (chunk >= seen.first_chunk && chunk < seen.end_chunk)
        weigh(scores + chunk * kChunk * kLanes, weights, to + chunk * kTile);
    }
    Dot::store_sums(state.values, at_once);
    for (int64_t first = at_once; first < tiles; first += at_once) {
      const int64_t count = min(tiles - first, at_once);
      float* sums = state.values + first * kResult;
      Dot::load_sums(sums, count);
      for (int64_t chunk = seen.first_chunk; chunk < seen.end_chunk; ++chunk)
        Dot::add_values(values + (chunk * tiles + first) * kTile, count, to + chunk * kTile, sums);
      Dot::store_sums(sums, count);
    }
    _mm512_store_ps(state.total, _mm512_add_ps(_mm512_load_ps(state.total), weights.sum));
  }

  void hide(int64_t t, int64_t start, float* scores, int64_t first_key, int64_t end_key) const {
    const __m512i first = _mm512_loadu_si512(first_ + t * kLanes), last = _mm512_loadu_si512(last_ + t * kLanes);
    const __m512 never = _mm512_set1_ps(-INFINITY);
    for (int64_t key = first_key; key < end_key; ++key) {
      const __m512i position = _mm512_set1_epi32(static_cast<int>(start + key));
      const __mmask16 seen = _mm512_mask_cmple_epi32_mask(_mm512_cmpge_epi32_mask(position, first), position, last);
      float* p = scores + key * kLanes;
      _mm512_store_ps(p, _mm512_mask_loadu_ps(never, seen, p));
    }
  }

  // What turns scores into weights, and the sum of those so far.
  struct Weights {
    __m512 scale, largest, sum;
  };

  // Finds the largest score so far; brings what the state holds to the same base.
  Weights raise(const float* scores, int64_t first_key, int64_t end_key, float factor, const State& state) const {
    __m512 top[4];
    for (auto& x : top) x = _mm512_set1_ps(-INFINITY);
    for (int64_t key = first_key; key < end_key; key += 4)
      for (int i = 0; i < 4; ++i) top[i] = _mm512_max_ps(top[i], _mm512_load_ps(scores + (key + i) * kLanes));
    const __m512 before = _mm512_load_ps(state.largest), scale = _mm512_set1_ps(factor);
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

  // The weights of a chunk.
  static void weigh(const float* scores, Weights& weights, uint16_t* to) {
    alignas(64) static constexpr uint16_t kPairs[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i pairs = _mm512_load_si512(kPairs);
    const __m512 scale = weights.scale, largest = weights.largest;
    __m512 sum = weights.sum;
    for (int64_t key = 0; key < kChunk; key += 2) {
      const float* p = scores + key * kLanes;
      const __m512 x = exp2(_mm512_fmsub_ps(_mm512_load_ps(p), scale, largest));
      const __m512 y = exp2(_mm512_fmsub_ps(_mm512_load_ps(p + kLanes), scale, largest));
      sum = _mm512_add_ps(sum, _mm512_add_ps(x, y));
      const __m512i rounded = (__m512i)_mm512_cvtne2ps_pbh(y, x);
      _mm512_store_si512(to + key * kLanes, _mm512_permutexvar_epi16(pairs, rounded));
    }
    weights.sum = sum;
  }

  void finish(int64_t t, const State& state) {
    const int used = lanes_of(t);
    if (a_.sinks) add_sinks(t, used, state);
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
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(a_.out + result(t, i) * a_.head_dim + dim),
                            (__m256i)_mm512_cvtneps_pbh(_mm512_castsi512_ps(rows[i])));
    }
    for (int i = 0; i < used; ++i)
      a_.lse[result(t, i)] =
          state.total[i] == 0 ? -INFINITY : (state.largest[i] + log2f(state.total[i])) * kLn2;
  }

  int64_t result(int64_t t, int i) const {
    return int64_t{token_[t * kLanes + i]} * a_.heads + head_[t * kLanes + i];
  }

  void add_sinks(int64_t t, int used, const State& state) {
    alignas(64) float sinks[kLanes] = {};
    for (int i = 0; i < used; ++i) sinks[i] = a_.sinks[head_[t * kLanes + i]];
    const __m512 sink = _mm512_mul_ps(_mm512_load_ps(sinks), _mm512_set1_ps(kLog2e));
    const __m512 before = _mm512_load_ps(state.largest), largest = _mm512_max_ps(before, sink);
    const __m512 shrink = exp2(_mm512_sub_ps(before, largest));
    _mm512_store_ps(state.largest, largest);
    _mm512_store_ps(state.total, _mm512_fmadd_ps(_mm512_load_ps(state.total), shrink,
                                                 exp2(_mm512_sub_ps(sink, largest))));
    for (float* p = state.values; p < state.values + a_.head_dim * kLanes; p += kLanes)
      _mm512_store_ps(p, _mm512_mul_ps(_mm512_load_ps(p), shrink));
  }

  const Attention& a_;
  const Tile& tile_;
  const Tile* const next_;
  const int64_t repeat_, num_lanes_;
  const Layout layout_;
  char* const base_;
  int32_t *const first_, *const last_, *const token_, *const head_;
  Bounds* const bounds_;
  const uint16_t* keys_[kGroup / kKeyTile];
  int64_t key_stride_ = 0;
  const Tile* ahead_ = nullptr;
  int64_t ahead_low_ = 0, ahead_high_ = 0;
};

}  // namespace
}  // namespace pallas_kernels
