// What one call of attention has to do: its operands checked, its queries cut into tiles.
#pragma once

#include <string>
#include <vector>

#include "attention.h"

namespace pallas_kernels {

// What is wrong with the rows and tables, or nothing. Everything that a tile reads lies within what is checked here.
std::string find_fault(const Attention& a);

// Rows that name the same blocks from position 0 on see the keys there together, in a tile that pauses; then, if some
// of them go on in common, these together, and so on; at last each by itself. Tiles of one phase are independent of
// each other and need those of the phases before. None of this has an influence on results.
struct Plan {
  std::vector<std::vector<Tile>> phases;  // each with the longest tiles first
  std::vector<Queries> queries;
  size_t scratch_bytes = 0;
  int64_t states = 0;  // pairs of states that tiles leave for others
};

Plan make_plan(const Attention& a, int64_t threads);

}  // namespace pallas_kernels
