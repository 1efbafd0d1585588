// What one call of attention has to do: its operands checked, its queries cut into tiles.
#pragma once

#include <string>
#include <vector>

#include "attention.h"

namespace pallas_kernels {

// What is wrong with the rows and tables, or nothing. Everything that a tile reads lies within what is checked here.
std::string find_fault(const Attention& a);

struct Plan {
  std::vector<Queries> queries;
  std::vector<Tile> tiles;  // the longest first
  size_t scratch_bytes = 0;
};

// How the queries are cut has no influence on results.
Plan make_plan(const Attention& a, int64_t threads);

}  // namespace pallas_kernels
