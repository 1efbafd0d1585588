// Reading keys and values before they are needed.
#pragma once

#include "ahead.h"
#include "attention.h"

namespace pallas_kernels {
namespace {

// The keys, or values, of a tile's position, counted from the beginning of their pool.
inline int64_t slot(const Attention& a, const Tile& tile, int64_t position) {
  const uint32_t size = static_cast<uint32_t>(a.block_size), p = static_cast<uint32_t>(position);
  const int64_t block = a.tables[tile.queries[0].row * a.table_width + p / size];
  return (block * a.kv_heads + tile.kv_head) * a.block_size + p % size;
}

// Runs kAhead positions before a tile's walk, or a whole tile where that is shorter: the tile before has read up to there,
// and this one reads as far into the next tile. Blocks lie far apart, and a core gets more from memory in several places
// at once than in one after the other.
class ReadAhead {
 public:
  static constexpr int64_t kAhead = 192;  // more than the places hold, of blocks of 32

  ReadAhead(const Attention& a, const Tile& tile, const Tile* next)
      : a_(a), tile_(&tile), next_(next), low_(begun(tile)), high_(tile.end) {}

  // Asks for so many lines, each of keys and of values, a few of each of some blocks in turn. Called all along, a few lines
  // at a time: the memory serves some sixteen at once, and whoever asks for more waits, with all that comes after.
  void read(int64_t lines) {
    for (due_ += lines; due_ >= kLines; due_ -= kLines) {
      Place& place = places_[turn_];
      turn_ = (turn_ + 1) % kPlaces;
      if (place.lines <= 0 && !find(place)) continue;
      for (int64_t i = 0; i < kLines; ++i, place.at += 64) {
        ask(static_cast<const char*>(a_.k_pool) + place.at);
        ask(static_cast<const char*>(a_.v_pool) + place.at);
      }
      place.lines -= kLines;
    }
  }

 private:
  static constexpr int64_t kPlaces = 4, kLines = 4;

  struct Place {
    int64_t at = 0, lines = 0;
  };

  // Up to where the tile before has read.
  static int64_t begun(const Tile& tile) { return tile.end < tile.begin + kAhead ? tile.end : tile.begin + kAhead; }

  // The lines in the next block, if there are any.
  bool find(Place& place) {
    if (low_ >= high_) {
      if (!next_) return false;
      tile_ = next_;
      next_ = nullptr;
      low_ = tile_->begin, high_ = begun(*tile_);
    }
    const int64_t in_block = a_.block_size - low_ % a_.block_size, count = high_ - low_ < in_block ? high_ - low_ : in_block;
    const int64_t first = slot(a_, *tile_, low_), bytes = a_.head_dim * (a_.k_scales ? 1 : 2);
    place = {first * bytes, (count * bytes + 63) / 64};
    if (a_.k_scales) read_scales(first, count);
    low_ += count;
    return true;
  }

  void read_scales(int64_t first, int64_t count) const {
    for (int64_t i = first; i < first + count; i += 16) {
      ask(a_.k_scales + i);
      ask(a_.v_scales + i);
    }
  }

  const Attention& a_;
  const Tile *tile_, *next_;
  int64_t low_, high_, due_ = 0, turn_ = 0;
  Place places_[kPlaces];
};

}  // namespace
}  // namespace pallas_kernels
