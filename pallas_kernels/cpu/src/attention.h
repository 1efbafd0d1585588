// Ragged paged attention, bfloat16: prefill chunks and decodes of one step over a paged cache.
//
// Keys are taken in groups of kGroup at absolute positions, groups in spans of kSpan. Within a span the softmax is
// online (Milakov & Gimelshein 2018), spans are merged in order, a sink last. A query's result follows from its own row
// alone: every operation acts on lanes or on rows of tiles that do not see each other, sums over keys have a fixed
// order, and a group in which a query sees no key leaves its state as it is, to the bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "each.h"

namespace pallas_kernels {

constexpr int kLanes = 16;
constexpr int64_t kGroup = 128;
constexpr int64_t kSpan = 4 * kGroup;
constexpr int64_t kLargestHeadDim = 256;

struct Attention {
  const uint16_t* q;           // [tokens, heads, head_dim]
  const uint16_t* k_pool;      // [blocks, kv_heads, block_size, head_dim]
  const uint16_t* v_pool;
  const int32_t* tables;       // [rows, table_width]
  const int32_t* query_start;  // [rows + 1]
  const int32_t* lengths;      // [rows]
  const float* sinks;          // [heads] or null
  uint16_t* out;               // [tokens, heads, head_dim]
  float* lse;                  // [tokens, heads]
  int64_t tokens, heads, head_dim, blocks, kv_heads, block_size, rows, table_width;
  int64_t window;  // 0: none
  float scale;
  float soft_cap;  // 0: none
};

// Consecutive queries of one row. state: where what is known of them is kept from one tile to the next, if it is.
struct Queries {
  int32_t row, token, count, state;
};

// Queries that see the keys at [begin, end) together, for one kv head; they name the same blocks there. A tile that
// resumes goes on from the states of its queries, one that pauses leaves them for another to go on: both at a multiple
// of kGroup.
struct Tile {
  const Queries* queries;
  int64_t num_queries;
  int64_t kv_head;
  int64_t begin, end;
  bool resumes, pauses;
  float* states;
};

constexpr int64_t tiles_of(int64_t lanes) { return (lanes + kLanes - 1) / kLanes; }

// Numbers in the state of 16 lanes: largest logit, sum of weights and weighted values; of all spans, and of the last.
constexpr int64_t state_floats(int64_t head_dim) { return (2 + head_dim) * kLanes; }

// Bytes that a tile of so many lanes (queries times heads per kv head) works in; the memory is aligned to 64.
size_t attention_scratch_bytes(const Attention& a, int64_t lanes);

// next: the tile that the thread will probably attend after this one, or null.
void attend_amx(const Attention& a, const Tile& tile, const Tile* next, void* scratch);
PALLAS_KERNELS_EACH(void attend(const Attention& a, const Tile& tile, const Tile* next, void* scratch);)

}  // namespace pallas_kernels
