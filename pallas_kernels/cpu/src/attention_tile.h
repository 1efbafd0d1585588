// The attention of one tile in the form that suits the number of queries: that of Rows or of Lanes, of the same bits.
// Included by one source per instruction set and kind of cache, and by nothing else.
#pragma once

#include "attention_walk.h"

namespace pallas_kernels {
namespace {

template <class ByRows, class ByLanes>
void attend_tile(const Attention& a, const Tile& tile, const Tile* next, void* scratch) {
  const FlushDenormals flush;
  if (count_lanes(a, tile) <= kLanes)
    ByRows(a, tile, next, scratch).run();
  else
    ByLanes(a, tile, next, scratch).run();
}

}  // namespace
}  // namespace pallas_kernels
