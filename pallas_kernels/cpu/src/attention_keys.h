// Reading a group of keys and values of a tile out of the cache.
// Included by one source per instruction set and kind of cache, through attention_walk.h, and by nothing else.
#pragma once

#include "attention_ahead.h"
#include "attention_layout.h"
#include "vectors.h"

namespace pallas_kernels {
namespace {

inline int64_t count_lanes(const Attention& a, const Tile& tile) {
  int64_t queries = 0;
  for (int64_t i = 0; i < tile.num_queries; ++i) queries += tile.queries[i].count;
  return queries * (a.heads / a.kv_heads);
}

// Cache: the type of a Number, and how 64 bytes of them are loaded where so many dims are left.
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

  int64_t slot(int64_t position) const { return pallas_kernels::slot(a_, tile_, position); }

  // Left operands of the scores: rows of the pool where 16 of them lie together, else a copy, zero beyond the head dim.
  void point_at_keys(int64_t start, int64_t low, int64_t high) {
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
          _mm512_store_si512(to + (p - position) * key_stride_ + dim, Cache::load(from + dim, a_.head_dim - dim));
      }
    }
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

  const Attention& a_;
  const Tile& tile_;
  const int64_t num_lanes_;
  const Layout layout_;
  char* const base_;
  const Number* keys_[kGroup / kKeyTile];
  int64_t key_stride_ = 0;
};

}  // namespace
}  // namespace pallas_kernels
