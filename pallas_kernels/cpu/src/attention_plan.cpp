#include "attention_plan.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "attention_layout.h"

namespace pallas_kernels {
namespace {

// About as many numbers as the state of one tile may have, so that it stays in a core's cache.
constexpr int64_t kStateFloats = 384 * 64;
constexpr int64_t kTilesPerThread = 6;

int64_t first_visible(const Attention& a, int64_t position) {
  return a.window > 0 ? std::max<int64_t>(0, position - a.window + 1) : 0;
}

std::string in_row(int64_t row, const std::string& text) { return "row " + std::to_string(row) + ": " + text; }

int64_t visible_from(const Attention& a, int32_t row, int32_t token) {
  return first_visible(a, int64_t{a.lengths[row]} - a.query_start[row + 1] + token);
}

int64_t most_lanes(const Attention& a) {
  return std::max<int64_t>(kLanes, kStateFloats / a.head_dim / kLanes * kLanes);
}

class Planner {
 public:
  Planner(const Attention& a, int64_t threads)
      : a_(a), threads_(threads), repeat_(a.heads / a.kv_heads), most_lanes_(most_lanes(a)) {}

  Plan plan() {
    const int64_t queries_per_tile = std::max<int64_t>(1, prefill_lanes() / repeat_);
    std::vector<int32_t> short_rows;
    for (int32_t row = 0; row < a_.rows; ++row) {
      const int32_t first = a_.query_start[row], last = a_.query_start[row + 1];
      if (first < last && last - first <= queries_per_tile && last - first <= kMostSharingQueries) {
        short_rows.push_back(row);
        continue;
      }
      for (int32_t token = first; token < last;) {
        const int32_t count = static_cast<int32_t>(std::min<int64_t>(queries_per_tile, last - token));
        add_tiles({{row, token, count, kNoState}}, 0, visible_from(a_, row, token), visible_to(row, token + count),
                  false, false);
        token += count;
      }
    }
    states_of_.assign(a_.rows, kNoState);
    split(short_rows, 0, 0);
    return finished();
  }

 private:
  static constexpr int32_t kNoState = -1;
  static constexpr int64_t kMostSharingQueries = 16;

  struct Planned {
    size_t phase, first_query;
    Tile tile;
  };

  int64_t visible_to(int32_t row, int32_t token) const {
    return int64_t{a_.lengths[row]} - a_.query_start[row + 1] + token;
  }

  int64_t count(int32_t row) const { return a_.query_start[row + 1] - a_.query_start[row]; }

  // Fewer where there is little to do, so that every thread gets something.
  int64_t prefill_lanes() const {
    int64_t queries = 0;
    for (int32_t row = 0; row < a_.rows; ++row)
      if (count(row) > 1) queries += count(row);
    const int64_t fair = queries * a_.heads / (kTilesPerThread * threads_) / kLanes * kLanes;
    return std::clamp(fair, std::min<int64_t>(most_lanes_, 3 * kLanes), most_lanes_);
  }

  // Plans rows that have seen the keys before `begin`, a multiple of kGroup, the same ones.
  void split(std::vector<int32_t>& rows, int64_t begin, size_t phase) {
    const auto next = [this, begin](int32_t row) { return blocks_of(row, begin, begin + kGroup); };
    const auto goes_on = [this, begin](int32_t row) { return a_.window == 0 && a_.lengths[row] >= begin + kGroup; };
    const auto middle = std::partition(rows.begin(), rows.end(), goes_on);
    for (auto row = middle; row != rows.end(); ++row) finish(*row, begin, phase);
    std::sort(rows.begin(), middle, [&](int32_t x, int32_t y) { return next(x) < next(y); });
    for (auto first = rows.begin(); first != middle;) {
      auto last = first + 1;
      while (last != middle && next(*last) == next(*first)) ++last;
      if (last - first == 1) {
        finish(*first, begin, phase);
      } else {
        std::vector<int32_t> sharers(first, last);
        const int64_t end = common_end(sharers, begin);
        see_together(sharers, begin, end, phase);
        split(sharers, end, phase + 1);
      }
      first = last;
    }
  }

  // A row's blocks that hold the positions [begin, end), as something to compare.
  std::basic_string_view<int32_t> blocks_of(int32_t row, int64_t begin, int64_t end) const {
    const int64_t first = begin / a_.block_size, last = (end - 1) / a_.block_size;
    return {a_.tables + row * a_.table_width + first, static_cast<size_t>(last - first + 1)};
  }

  // How far, in whole groups, the rows name the same blocks; they do so for one group at least.
  int64_t common_end(const std::vector<int32_t>& rows, int64_t begin) const {
    int64_t end = begin + kGroup;
    const auto same = [&](int32_t row) {
      return a_.lengths[row] >= end + kGroup &&
             blocks_of(row, end, end + kGroup) == blocks_of(rows.front(), end, end + kGroup);
    };
    while (std::all_of(rows.begin(), rows.end(), same)) end += kGroup;
    return end;
  }

  void see_together(const std::vector<int32_t>& rows, int64_t begin, int64_t end, size_t phase) {
    int64_t lanes = 0;
    for (const int32_t row : rows) lanes += count(row) * repeat_;
    const int64_t parts = (2 * threads_ + a_.kv_heads - 1) / a_.kv_heads;
    const int64_t most = std::clamp((lanes + parts - 1) / parts, std::min<int64_t>(most_lanes_, 2 * kLanes), most_lanes_);
    std::vector<Queries> together;
    int64_t used = 0;
    const auto add = [&] {
      add_tiles(together, phase, begin, end, begin > 0, true);
      together.clear();
      used = 0;
    };
    for (const int32_t row : rows) {
      const int64_t more = count(row) * repeat_;
      if (states_of_[row] == kNoState) {
        states_of_[row] = static_cast<int32_t>(plan_.states);
        plan_.states += a_.kv_heads * tiles_of(more);
      }
      if (used > 0 && used + more > most) add();
      together.push_back(queries_of(row));
      used += more;
    }
    add();
  }

  Queries queries_of(int32_t row) const {
    return {row, a_.query_start[row], static_cast<int32_t>(count(row)), states_of_[row]};
  }

  // What a row has to see from `begin` on, by itself.
  void finish(int32_t row, int64_t begin, size_t phase) {
    const int64_t from = std::max(begin, visible_from(a_, row, a_.query_start[row]));
    add_tiles({queries_of(row)}, phase, from, a_.lengths[row], begin > 0, false);
  }

  void add_tiles(const std::vector<Queries>& queries, size_t phase, int64_t begin, int64_t end, bool resumes,
                 bool pauses) {
    int64_t lanes = 0;
    for (const Queries& q : queries) lanes += q.count * repeat_;
    plan_.scratch_bytes = std::max(plan_.scratch_bytes, attention_scratch_bytes(a_, lanes));
    for (int64_t head = 0; head < a_.kv_heads; ++head)
      planned_.push_back({phase, plan_.queries.size(),
                          {nullptr, static_cast<int64_t>(queries.size()), head, begin, end, resumes, pauses, nullptr}});
    plan_.queries.insert(plan_.queries.end(), queries.begin(), queries.end());
  }

  Plan finished() {
    size_t phases = 0;
    for (const Planned& planned : planned_) phases = std::max(phases, planned.phase + 1);
    plan_.phases.resize(phases);
    for (Planned& planned : planned_) {
      planned.tile.queries = plan_.queries.data() + planned.first_query;
      plan_.phases[planned.phase].push_back(planned.tile);
    }
    const auto cost = [this](const Tile& tile) {
      int64_t lanes = 0;
      for (int64_t i = 0; i < tile.num_queries; ++i) lanes += tile.queries[i].count * repeat_;
      return (tile.end - tile.begin) * (2 + tiles_of(lanes));
    };
    for (std::vector<Tile>& tiles : plan_.phases)
      std::stable_sort(tiles.begin(), tiles.end(), [&](const Tile& x, const Tile& y) { return cost(x) > cost(y); });
    return std::move(plan_);
  }

  const Attention& a_;
  const int64_t threads_, repeat_, most_lanes_;
  Plan plan_;
  std::vector<Planned> planned_;
  std::vector<int32_t> states_of_;  // by row
};

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

size_t attention_scratch_bytes(const Attention& a, int64_t lanes) { return Layout(a, lanes).bytes; }

Plan make_plan(const Attention& a, int64_t threads) { return Planner(a, threads).plan(); }

}  // namespace pallas_kernels
