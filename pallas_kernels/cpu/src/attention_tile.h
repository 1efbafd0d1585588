// The attention of one tile, for a Dot: in the form that suits the number of queries. Both give the same bits.
// Included by one source per instruction set, and by nothing else.
#pragma once

#include "attention_lanes.h"
#include "attention_rows.h"

namespace pallas_kernels {
namespace {

template <class Dot, class Cache>
void attend_cache(const Attention& a, const Tile& tile, const Tile* next, void* scratch) {
  const FlushDenormals flush;
  if (count_lanes(a, tile) <= kLanes)
    ByRows<Dot, Cache>(a, tile, next, scratch).run();
  else
    ByLanes<Dot, Cache>(a, tile, next, scratch).run();
}

template <class Dot>
void attend(const Attention& a, const Tile& tile, const Tile* next, void* scratch) {
  (a.k_scales ? attend_cache<Dot, Int8Cache> : attend_cache<Dot, BFloat16Cache>)(a, tile, next, scratch);
}

}  // namespace
}  // namespace pallas_kernels
