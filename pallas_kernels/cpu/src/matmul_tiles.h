// Products by tiles, of bfloat16 or of int8, whatever the format of w. 16 rows of w are the A tile and packed tokens the B
// tile, so that sums come out as [output, token], and up to 16 tokens cost the same reads of w. Included by sources named
// *_amx.cpp, and by nothing else.
#pragma once

#include <immintrin.h>

#include "amx.h"
#include "matmul.h"
#include "gate.h"

namespace pallas_kernels {
namespace {

constexpr int64_t kPanel = 16;  // outputs of a tile

inline __mmask16 first_bits(int64_t count) { return count >= 16 ? 0xffff : static_cast<__mmask16>((1u << count) - 1); }

// Outputs of so many panels.
constexpr int64_t outputs_of(const Matmul& m, int64_t panels) { return panels * kPanel / (m.gated ? 2 : 1); }

int64_t tokens_in(const Matmul& m, int64_t block) {
  const int64_t most = tokens_per_block(m), left = m.tokens - block * most;
  return left < most ? left : most;
}

// Sums of 16 outputs as a tile: a row for each of them, and 16 rows of x in it.
struct Sums {
  // row: of w, of the first of them; block: of x. Sums over high and low bytes are added, then multiplied by both factors.
  Sums(const Matmul& m, const float* tile, int64_t row, __mmask16 mask, int64_t block) {
    for (int i = 0; i < 16; ++i) token[i] = _mm512_load_si512(tile + i * 16);
    transpose(token);
    if (m.kind != GGUFKind::kI8) return;
    const __m512 scale = _mm512_maskz_loadu_ps(mask, m.scale + row);
    const float* x_scale = m.x_scale + block * kQuantizedTokens;
    for (int64_t i = 0; i < kQuantizedTokens; ++i) {
      const __m512 high = _mm512_mul_ps(_mm512_cvtepi32_ps(token[i]), _mm512_set1_ps(256));
      const __m512 sum = _mm512_add_ps(high, _mm512_cvtepi32_ps(token[kQuantizedTokens + i]));
      token[i] = _mm512_castps_si512(_mm512_mul_ps(_mm512_mul_ps(sum, scale), _mm512_set1_ps(x_scale[i])));
    }
  }
  __m512 of(int64_t i) const { return _mm512_castsi512_ps(token[i]); }

  __m512i token[16];
};

// Writes the sums of one panel, or of two beside each other, into their columns of y.
void store_sums(const Matmul& m, const float* tile, int64_t output, int64_t block) {
  const __mmask16 mask = first_bits(m.outputs - output);
  const Sums sums(m, tile, output, mask, block);
  int64_t at = block * tokens_per_block(m) * m.outputs + output;
  for (int64_t i = 0; i < tokens_in(m, block); ++i, at += m.outputs) {
    if (m.y_is_float32) {
      _mm512_mask_storeu_ps(static_cast<float*>(m.y) + at, mask, sums.of(i));
    } else {
      _mm256_mask_storeu_epi16(static_cast<uint16_t*>(m.y) + at, mask, (__m256i)_mm512_cvtneps_pbh(sums.of(i)));
    }
  }
}

void store_sums(const Matmul& m, const float* tile, const float* next_tile, int64_t output, int64_t block) {
  if (m.y_is_float32 || output + 2 * kPanel > m.outputs) {
    store_sums(m, tile, output, block);
    if (output + kPanel < m.outputs) store_sums(m, next_tile, output + kPanel, block);
    return;
  }
  const Sums low(m, tile, output, 0xffff, block), high(m, next_tile, output + kPanel, 0xffff, block);
  uint16_t* to = static_cast<uint16_t*>(m.y) + block * tokens_per_block(m) * m.outputs + output;
  for (int64_t i = 0; i < tokens_in(m, block); ++i, to += m.outputs)
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high.of(i), low.of(i)));
}

void store_gated(const Matmul& m, const float* gate_tile, const float* up_tile, int64_t output, int64_t block) {
  const __mmask16 mask = first_bits(m.outputs - output);
  const Sums gate(m, gate_tile, output, mask, block), up(m, up_tile, m.outputs + output, mask, block);
  uint16_t* to = static_cast<uint16_t*>(m.y) + block * tokens_per_block(m) * m.outputs + output;
  for (int64_t i = 0; i < tokens_in(m, block); ++i, to += m.outputs)
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(gated(m.activation, gate.of(i), up.of(i))));
}

// Where a panel's tiles lie: in w itself, or copied, each tile by itself. Panels come in pairs: two in a row, or, gated,
// the two that make the same outputs.
struct Rows {
  const char* start;
  int64_t row_bytes, step_bytes, panel_bytes, pair_bytes;

  const char* tile(int64_t panel, int64_t step) const {
    return start + panel % 2 * panel_bytes + panel / 2 * pair_bytes + step * step_bytes;
  }
};

// Asks for the rows of w that come next while others are being used; gated, for both of an output. A core gets half as
// much again from memory in several places at once, a few lines of each in turn, as from one place after the other.
struct Ahead {
  static constexpr int64_t kPlaces = 4, kLines = 4;

  // rows: how many, of which each place has its share; lines_per_step: how many lines to ask for in each step.
  Ahead(const char* first, int64_t row_bytes, int64_t up_bytes, int64_t rows, int64_t lines_per_row, int64_t lines_per_step)
      : row(first), row_bytes(row_bytes), up_bytes(up_bytes), place_bytes(rows / kPlaces * row_bytes),
        lines_per_row(64 * lines_per_row == row_bytes ? rows / kPlaces * lines_per_row : lines_per_row),
        lines_per_step(lines_per_step) {}

  void step() {
    const bool whole = lines_per_row % kLines == 0;
    const int64_t count = whole ? kLines : 1;
    for (due += lines_per_step; due >= count; due -= count) {
      const char* at = row + place * place_bytes + line * 64;
      whole ? ask<kLines>(at) : ask<1>(at);
      if (++place < kPlaces) continue;
      place = 0, line += count;
      if (line >= lines_per_row) line = 0, row += row_bytes;
    }
  }

  template <int64_t kCount>
  void ask(const char* at) const {
    for (int64_t i = 0; i < kCount; ++i) _mm_prefetch(at + i * 64, _MM_HINT_T1);
    if (!up_bytes) return;
    for (int64_t i = 0; i < kCount; ++i) _mm_prefetch(at + up_bytes + i * 64, _MM_HINT_T1);
  }

  const char* row;
  int64_t row_bytes, up_bytes, place_bytes, lines_per_row, lines_per_step, due = 0, place = 0, line = 0;
};

// What a tile product is of.
struct BFloat16 {
  template <int kSums, int kA, int kB>
  static void dot() {
    tile_dot_bf16<kSums, kA, kB>();
  }
};
struct Int8 {
  template <int kSums, int kA, int kB>
  static void dot() {
    tile_dot_int8<kSums, kA, kB>();
  }
};

// The products of some panels with some blocks of tokens, block_bytes apart, over some steps: four sums at most, as
// tiles one after the other, are added to or begun.
template <typename Numbers, int kPanels, int kBlocks>
inline void dot(const Rows& rows, const char* tokens, int64_t block_bytes, int64_t steps, bool add, float* sums,
                Ahead& ahead) {
  constexpr int kSums = kPanels * kBlocks;
  if (add) {
    tile_load<0>(sums, 64);
    if constexpr (kSums > 1) tile_load<1>(sums + 256, 64);
    if constexpr (kSums > 2) tile_load<2>(sums + 512, 64), tile_load<3>(sums + 768, 64);
  } else {
    tile_zero<0>();
    if constexpr (kSums > 1) tile_zero<1>();
    if constexpr (kSums > 2) tile_zero<2>(), tile_zero<3>();
  }
  for (int64_t s = 0; s < steps; ++s) {
    tile_load<6>(tokens + s * kTileBytes, 64);
    if constexpr (kBlocks > 1) tile_load<7>(tokens + block_bytes + s * kTileBytes, 64);
    tile_load<4>(rows.tile(0, s), rows.row_bytes);
    Numbers::template dot<0, 4, 6>();
    if constexpr (kBlocks > 1) Numbers::template dot<1, 4, 7>();
    if constexpr (kPanels > 1) {
      tile_load<5>(rows.tile(1, s), rows.row_bytes);
      Numbers::template dot<kBlocks, 5, 6>();
      if constexpr (kBlocks > 1) Numbers::template dot<3, 5, 7>();
    }
    if constexpr (kPanels > 2) {
      tile_load<7>(rows.tile(2, s), rows.row_bytes);
      Numbers::template dot<2, 7, 6>();
      tile_load<4>(rows.tile(3, s), rows.row_bytes);
      Numbers::template dot<3, 4, 6>();
    }
    ahead.step();
  }
  tile_store<0>(sums, 64);
  if constexpr (kSums > 1) tile_store<1>(sums + 256, 64);
  if constexpr (kSums > 2) tile_store<2>(sums + 512, 64), tile_store<3>(sums + 768, 64);
}

template <int kPanels, int kBlocks>
inline void store(const Matmul& m, const float* sums, int64_t output, int64_t block) {
  const auto tile = [sums](int p, int b) { return sums + (p * kBlocks + b) * 256; };
  for (int b = 0; b < kBlocks; ++b) {
    if constexpr (kPanels == 1) {
      store_sums(m, tile(0, b), output, block + b);
    } else {
      for (int p = 0; p < kPanels; p += 2) {
        const int64_t first = output + outputs_of(m, p);
        if (m.gated) {
          store_gated(m, tile(p, b), tile(p + 1, b), first, block + b);
        } else {
          store_sums(m, tile(p, b), tile(p + 1, b), first, block + b);
        }
      }
    }
  }
}

struct Span {
  int64_t first, last;
};

// The outputs of a piece of work, and where the thread's next one begins (kNoOutput: there is none).
struct Outputs {
  int64_t first, last, next;

  // Whose rows will be wanted after those of `count` outputs.
  int64_t after(int64_t output, int64_t count) const { return output + count < last ? output + count : next; }
};

// The products of the panels at an output with all blocks of tokens: slices of the panels' rows are written tile by tile
// into the first-level cache by a Source, and serve all blocks. A Source has
//
//   Numbers                                    what it writes
//   kMaxSteps                                  of a slice
//   steps_in_block()                           what a slice's steps are a multiple of
//   fill(row, count, step, steps, to, next)    writes kPanel rows of w from a row on, zeros in place of those from number
//                                              `count` on, over some steps; `next` is where it will do so afterwards
//   ahead(next, rows, steps, lines)            what to ask the memory for during the products, `lines` at each step, for
//                                              so many rows over so many steps
struct Place {
  int64_t row, step;  // kNoOutput: nowhere
};

template <int kPanels, typename Source>
void reuse(const Source& source, const Matmul& m, const char* packed, int64_t output, Outputs outputs, Span blocks) {
  constexpr int64_t kMaxSteps = Source::kMaxSteps;
  alignas(64) char copy[kPanels * kMaxSteps * kTileBytes];
  alignas(64) float sums[kPanels * kBlocksPerCall * 256];
  const int64_t all_steps = num_steps(m.inputs), block_bytes = all_steps * kTileBytes, unit = source.steps_in_block();
  const int64_t slices = (all_steps + kMaxSteps - 1) / kMaxSteps;
  const int64_t per_slice = ((all_steps + slices - 1) / slices + unit - 1) / unit * unit;
  const Rows rows{copy, 64, kTileBytes, kMaxSteps * kTileBytes, 2 * kMaxSteps * kTileBytes};
  const int64_t pairs = (blocks.last - blocks.first + 1) / 2, lines = (kPanels * kPanel + pairs - 1) / pairs;
  for (int64_t step = 0; step < all_steps; step += per_slice) {
    const int64_t steps = step + per_slice < all_steps ? per_slice : all_steps - step;
    const bool add = step > 0, done = step + steps == all_steps;
    const Place next = done ? Place{outputs.after(output, outputs_of(m, kPanels)), 0} : Place{output, step + steps};
    for (int p = 0; p < kPanels; ++p) {
      const int64_t first = m.gated ? output : output + p * kPanel, skipped = m.gated ? p * m.outputs : p * kPanel;
      source.fill(output + skipped, m.outputs - first, step, steps, copy + p * rows.panel_bytes,
                  next.row == kNoOutput ? next : Place{next.row + skipped, next.step});
    }
    Ahead ahead = source.ahead(next, kPanels * kPanel, per_slice, lines);
    for (int64_t b = blocks.first; b < blocks.last;) {
      const char* tokens = packed + b * block_bytes + step * kTileBytes;
      float* at = slices > 1 ? sums + (b - blocks.first) * kPanels * 256 : sums;
      if (b + 2 <= blocks.last) {
        dot<typename Source::Numbers, kPanels, 2>(rows, tokens, block_bytes, steps, add, at, ahead);
        if (done) store<kPanels, 2>(m, at, output, b);
        b += 2;
      } else {
        dot<typename Source::Numbers, kPanels, 1>(rows, tokens, block_bytes, steps, add, at, ahead);
        if (done) store<kPanels, 1>(m, at, output, b);
        b += 1;
      }
    }
  }
}

// All outputs from the first on.
template <typename Source>
void reuse_all(const Source& source, const Matmul& m, const char* packed, Outputs outputs, Span blocks) {
  for (int64_t o = outputs.first; o < outputs.last; o += outputs_of(m, 2)) {
    if (m.gated || o + kPanel < outputs.last) {
      reuse<2>(source, m, packed, o, outputs, blocks);
    } else {
      reuse<1>(source, m, packed, o, outputs, blocks);
    }
  }
}

}  // namespace
}  // namespace pallas_kernels
