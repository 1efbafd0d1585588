#include "attention_plan.h"

#include <algorithm>

namespace pallas_kernels {
namespace {

// About as many numbers as the state of one tile may have, so that it stays in a core's cache.
constexpr int64_t kStateFloats = 192 * 64;
constexpr int64_t kTilesPerThread = 6;

int64_t first_visible(const Attention& a, int64_t position) {
  return a.window > 0 ? std::max<int64_t>(0, position - a.window + 1) : 0;
}

std::string in_row(int64_t row, const std::string& text) { return "row " + std::to_string(row) + ": " + text; }

int64_t lanes_per_tile(const Attention& a, int64_t threads) {
  int64_t prefill_queries = 0;
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t count = a.query_start[row + 1] - a.query_start[row];
    if (count > 1) prefill_queries += count;
  }
  const int64_t most = std::max<int64_t>(kLanes, kStateFloats / a.head_dim / kLanes * kLanes);
  const int64_t fair = prefill_queries * a.heads / (kTilesPerThread * threads) / kLanes * kLanes;
  return std::clamp(fair, std::min<int64_t>(most, 3 * kLanes), most);
}

}  // namespace

std::string find_fault(const Attention& a) {
  if (a.query_start[0] < 0 || a.query_start[a.rows] > a.tokens)
    return "query_start must lie within the " + std::to_string(a.tokens) + " tokens of q, got " +
           std::to_string(a.query_start[0]) + " to " + std::to_string(a.query_start[a.rows]);
  for (int64_t row = 0; row < a.rows; ++row) {
    const int64_t count = int64_t{a.query_start[row + 1]} - a.query_start[row], length = a.lengths[row];
    if (count < 0) return in_row(row, "query_start falls");
    if (count == 0) continue;
    if (length < count)
      return in_row(row, "has " + std::to_string(count) + " queries but length " + std::to_string(length));
    if (length > a.table_width * a.block_size)
      return in_row(row, "length " + std::to_string(length) + " exceeds its table of " +
                             std::to_string(a.table_width) + " blocks");
    const int64_t last = (length - 1) / a.block_size;
    for (int64_t i = first_visible(a, length - count) / a.block_size; i <= last; ++i) {
      const int32_t block = a.tables[row * a.table_width + i];
      if (block < 0 || block >= a.blocks)
        return in_row(row, "names block " + std::to_string(block) + " of a pool of " + std::to_string(a.blocks));
    }
  }
  return {};
}

Plan make_plan(const Attention& a, int64_t threads) {
  Plan plan;
  const int64_t repeat = a.heads / a.kv_heads;
  const int64_t queries_per_tile = std::max<int64_t>(1, lanes_per_tile(a, threads) / repeat);
  for (int64_t row = 0; row < a.rows; ++row)
    for (int32_t token = a.query_start[row]; token < a.query_start[row + 1];) {
      const int64_t count = std::min<int64_t>(queries_per_tile, a.query_start[row + 1] - token);
      plan.queries.push_back({static_cast<int32_t>(row), token, static_cast<int32_t>(count)});
      token += count;
    }
  const auto cost = [](const Tile& tile) { return (tile.end - tile.begin) * (8 + tile.queries->count); };
  for (const Queries& queries : plan.queries) {
    const int64_t first = a.lengths[queries.row] - a.query_start[queries.row + 1] + queries.token;
    for (int64_t head = 0; head < a.kv_heads; ++head)
      plan.tiles.push_back({&queries, 1, head, first_visible(a, first), first + queries.count});
    plan.scratch_bytes = std::max(plan.scratch_bytes, attention_scratch_bytes(a, queries.count * repeat));
  }
  std::stable_sort(plan.tiles.begin(), plan.tiles.end(),
                   [&](const Tile& x, const Tile& y) { return cost(x) > cost(y); });
  return plan;
}

}  // namespace pallas_kernels
