// What products by tiles have in common, of bfloat16 or of int8, whatever the format of w. 16 rows of w are the A tile and
// packed tokens the B tile, so that sums come out as [output, token], and up to 16 tokens cost the same reads of w.
// Included by sources that are compiled for one instruction set, and by nothing else.
#pragma once

#include <algorithm>
#include <cstring>

#include "ahead.h"
#include "gate.h"
#include "matmul.h"
#include "transpose.h"
#include "vectors.h"

namespace pallas_kernels {
namespace {

constexpr int64_t kPanel = 16;  // outputs of a tile

struct Span {
  int64_t first, last;
};

// A number of 32 bits.
inline int number_at(const char* p) {
  int number;
  std::memcpy(&number, p, sizeof number);
  return number;
}

inline unsigned first_bits(int64_t count) { return count >= 16 ? 0xffff : (1u << count) - 1; }

// Outputs of so many panels.
constexpr int64_t outputs_of(const Matmul& m, int64_t panels) { return panels * kPanel / (m.gated ? 2 : 1); }

int64_t tokens_in(const Matmul& m, int64_t block) {
  const int64_t most = tokens_per_block(m), left = m.tokens - block * most;
  return left < most ? left : most;
}

// Sums of 16 outputs as a tile: a row for each of them, and 16 rows of x in it.
struct Sums {
  // row: of w, of the first of them; block: of x. Sums over high and low bytes are added, then multiplied by both factors.
  Sums(const Matmul& m, const float* tile, int64_t row, unsigned mask, int64_t block) {
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
  // Of rows that are tokens'; of the first `count`.
  Sums(const float* rows, int64_t count) {
    for (int64_t i = 0; i < count; ++i) token[i] = _mm512_load_si512(rows + i * 16);
  }
  __m512 of(int64_t i) const { return _mm512_castsi512_ps(token[i]); }

  __m512i token[16];
};

// Writes the sums of one panel, or of two beside each other, into their columns of y.
void store_sums(const Matmul& m, const Sums& sums, int64_t output, unsigned mask, int64_t block) {
  int64_t at = block * tokens_per_block(m) * m.outputs + output;
  for (int64_t i = 0; i < tokens_in(m, block); ++i, at += m.outputs) {
    if (m.y_is_float32) {
      _mm512_mask_storeu_ps(static_cast<float*>(m.y) + at, mask, sums.of(i));
    } else {
      _mm256_mask_storeu_epi16(static_cast<uint16_t*>(m.y) + at, mask, (__m256i)_mm512_cvtneps_pbh(sums.of(i)));
    }
  }
}

void store_sums(const Matmul& m, const float* tile, int64_t output, int64_t block) {
  const unsigned mask = first_bits(m.outputs - output);
  store_sums(m, Sums(m, tile, output, mask, block), output, mask, block);
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

void store_gated(const Matmul& m, const Sums& gate, const Sums& up, int64_t output, unsigned mask, int64_t block) {
  uint16_t* to = static_cast<uint16_t*>(m.y) + block * tokens_per_block(m) * m.outputs + output;
  for (int64_t i = 0; i < tokens_in(m, block); ++i, to += m.outputs)
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(gated(m.activation, gate.of(i), up.of(i))));
}

void store_gated(const Matmul& m, const float* gate_tile, const float* up_tile, int64_t output, int64_t block) {
  const unsigned mask = first_bits(m.outputs - output);
  const Sums gate(m, gate_tile, output, mask, block), up(m, up_tile, m.outputs + output, mask, block);
  store_gated(m, gate, up, output, mask, block);
}

// Where a panel's tiles lie: in w itself, or copied, each tile by itself. Panels come in pairs: two in a row, or, gated,
// the two that make the same outputs.
struct Rows {
  const char* start;
  int64_t row_bytes, step_bytes, panel_bytes, pair_bytes;

  const char* tile(int64_t panel, int64_t step) const {
    return start + panel % 2 * panel_bytes + panel / 2 * pair_bytes + step * step_bytes;
  }
  Rows from(int64_t panel) const { return {tile(panel, 0), row_bytes, step_bytes, panel_bytes, pair_bytes}; }
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
      whole ? ask_lines<kLines>(at) : ask_lines<1>(at);
      if (++place < kPlaces) continue;
      place = 0, line += count;
      if (line >= lines_per_row) line = 0, row += row_bytes;
    }
  }

  template <int64_t kCount>
  void ask_lines(const char* at) const {
    for (int64_t i = 0; i < kCount; ++i) ask(at + i * 64);
    if (!up_bytes) return;
    for (int64_t i = 0; i < kCount; ++i) ask(at + up_bytes + i * 64);
  }

  const char* row;
  int64_t row_bytes, up_bytes, place_bytes, lines_per_row, lines_per_step, due = 0, place = 0, line = 0;
};

}  // namespace
}  // namespace pallas_kernels
