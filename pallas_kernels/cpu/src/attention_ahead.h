// Reading keys and values before they are needed.
#pragma once

#include "attention.h"
#include "vectors.h"

namespace pallas_kernels {
namespace {

// Where the keys, and values, of a tile's position begin in their pool.
inline int64_t slot(const Attention& a, const Tile& tile, int64_t position) {
  const uint32_t size = static_cast<uint32_t>(a.block_size), p = static_cast<uint32_t>(position);
  const int64_t block = a.tables[tile.queries[0].row * a.table_width + p / size];
  return ((block * a.kv_heads + tile.kv_head) * a.block_size + p % size) * a.head_dim;
}

// Runs kAhead positions before a tile's walk: the tile before has read up to there, and this one reads as many of the
// next tile.
class ReadAhead {
 public:
  static constexpr int64_t kAhead = kGroup;

  ReadAhead(const Attention& a, const Tile& tile, const Tile* next)
      : a_(a), tile_(&tile), next_(next), low_(tile.begin + kAhead), high_(tile.end) {}

  // Asks for so many lines, each of keys and of values. Called all along: the memory serves some sixteen lines at once,
  // and who asks for more waits.
  void read(int64_t lines) {
    while (lines > 0) {
      if (lines_ == 0 && !find()) return;
      const int64_t count = lines < lines_ ? lines : lines_;
      for (int64_t i = 0; i < count; ++i, at_ += 64) {
        _mm_prefetch(reinterpret_cast<const char*>(a_.k_pool) + at_, _MM_HINT_T1);
        _mm_prefetch(reinterpret_cast<const char*>(a_.v_pool) + at_, _MM_HINT_T1);
      }
      lines_ -= count;
      lines -= count;
    }
  }

 private:
  // The lines in the next block, if there are any.
  bool find() {
    if (low_ >= high_) {
      if (!next_) return false;
      tile_ = next_;
      next_ = nullptr;
      low_ = tile_->begin + low_ - high_;
      high_ = tile_->end < tile_->begin + kAhead ? tile_->end : tile_->begin + kAhead;
      if (low_ >= high_) return false;
    }
    const int64_t in_block = a_.block_size - low_ % a_.block_size, count = high_ - low_ < in_block ? high_ - low_ : in_block;
    at_ = slot(a_, *tile_, low_) * 2;
    lines_ = (count * a_.head_dim * 2 + 63) / 64;
    low_ += count;
    return true;
  }

  const Attention& a_;
  const Tile *tile_, *next_;
  int64_t low_, high_, at_ = 0, lines_ = 0;
};

}  // namespace
}  // namespace pallas_kernels
