// Reading a group of keys and values of a tile out of the cache.
// Included by one source per instruction set, through attention_walk.h, and by nothing else.
#pragma once

#include <immintrin.h>
#include <string.h>

#include "attention_ahead.h"
#include "attention_bytes.h"
#include "attention_layout.h"

namespace pallas_kernels {
namespace {

inline int64_t count_lanes(const Attention& a, const Tile& tile) {
  int64_t queries = 0;
  for (int64_t i = 0; i < tile.num_queries; ++i) queries += tile.queries[i].count;
  return queries * (a.heads / a.kv_heads);
}

// What the cache holds.
struct BFloat16Cache {
  using Number = uint16_t;
  static constexpr bool kBytes = false;
};

struct Int8Cache {
  using Number = int8_t;
  static constexpr bool kBytes = true;
};

template <class Cache>
class GroupOfKeys {
 protected:
  using Number = typename Cache::Number;

  GroupOfKeys(const Attention& a, const Tile& tile, void* scratch)
      : a_(a), tile_(tile), num_lanes_(count_lanes(a, tile)), layout_(a, num_lanes_),
        base_(static_cast<char*>(scratch)) {}

  template <typename T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(base_ + offset);
  }
  static int64_t min(int64_t x, int64_t y) { return x < y ? x : y; }
  static int64_t max(int64_t x, int64_t y) { return x > y ? x : y; }

  __mmask32 dims_from(int64_t step) const {
    const int64_t rest = a_.head_dim - 32 * step;
    return rest >= 32 ? ~__mmask32{0} : (__mmask32{1} << rest) - 1;
  }

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

  const Attention& a_;
  const Tile& tile_;
  const int64_t num_lanes_;
  const Layout layout_;
  char* const base_;
  const Number* keys_[kGroup / kKeyTile];
  int64_t key_stride_ = 0;
  float flaw_ = 0;  // not a number where a value of the group is none, else zero
};

}  // namespace
}  // namespace pallas_kernels
