// Tile products of attention by VDPBF16PS, or what stands for it in registers of 512 bits.
#pragma once

#include <string.h>

#include "attention_ahead.h"
#include "attention_layout.h"
#include "transpose.h"
#include "vectors.h"

namespace pallas_kernels {
namespace {

struct VectorDot {
  // The same pair in every lane.
  static __m512bh spread(const uint16_t* p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    return (__m512bh)_mm512_set1_epi32(pair);
  }

  // c[rows, 16] += a[rows, 2 * 16] b[16, 16, 2]
  template <int kRows>
  static void add(const uint16_t* a, int64_t stride, const uint16_t* b, __m512 (&c)[kRows]) {
    for (int k = 0; k < 16; ++k) {
      const __m512bh right = (__m512bh)_mm512_load_si512(b + 32 * k);
      for (int i = 0; i < kRows; ++i) c[i] = _mm512_dpbf16_ps(c[i], spread(a + i * stride + 2 * k), right);
    }
  }

  // The same, with c in memory and a's rows one after the other.
  template <int kRows>
  static void add_to(const uint16_t* a, const uint16_t* b, float* sums) {
    __m512 c[kRows];
    for (int i = 0; i < kRows; ++i) c[i] = _mm512_load_ps(sums + 16 * i);
    add(a, 32, b, c);
    for (int i = 0; i < kRows; ++i) _mm512_store_ps(sums + 16 * i, c[i]);
  }

  static void scores(const uint16_t* const* keys, int64_t tiles, int64_t stride, const uint16_t* q, int64_t steps,
                     float* to) {
    for (int64_t tile = 0; tile < tiles; ++tile, to += kResult) {
      __m512 c[16];
      for (auto& row : c) row = _mm512_setzero_ps();
      // With a stride of 32 each step's rows lie one after the other.
      if (stride == 32)
        for (int64_t step = 0; step < steps; ++step) add(keys[tile] + step * kTile, 32, q + step * kTile, c);
      else
        for (int64_t step = 0; step < steps; ++step) add(keys[tile] + 32 * step, stride, q + step * kTile, c);
      for (int i = 0; i < 16; ++i) _mm512_store_ps(to + 16 * i, c[i]);
    }
  }

  // Two tiles of queries at a time share each load of a left operand.
  static constexpr bool kPairs = true;

  // c[rows, 16] += a[rows, 2 * 16] b[16, 16, 2], and d with another b; a's rows lie one after the other.
  template <int kRows>
  static void add_pair(const uint16_t* a, const uint16_t* b, const uint16_t* other, __m512 (&c)[kRows],
                       __m512 (&d)[kRows]) {
    for (int k = 0; k < 16; ++k) {
      const __m512bh first = (__m512bh)_mm512_load_si512(b + 32 * k), second = (__m512bh)_mm512_load_si512(other + 32 * k);
      for (int i = 0; i < kRows; ++i) {
        const __m512bh left = spread(a + i * 32 + 2 * k);
        c[i] = _mm512_dpbf16_ps(c[i], left, first);
        d[i] = _mm512_dpbf16_ps(d[i], left, second);
      }
    }
  }

  // Of a tile of keys, each step's rows one after the other.
  static void pair_scores(const uint16_t* keys, const uint16_t* q, const uint16_t* other, int64_t steps, float* to,
                          float* to_other) {
    for (int row = 0; row < 16; row += 8) {
      __m512 c[8], d[8];
      for (int i = 0; i < 8; ++i) c[i] = d[i] = _mm512_setzero_ps();
      for (int64_t step = 0; step < steps; ++step)
        add_pair(keys + step * kTile + row * 32, q + step * kTile, other + step * kTile, c, d);
      for (int i = 0; i < 8; ++i) {
        _mm512_store_ps(to + (row + i) * 16, c[i]);
        _mm512_store_ps(to_other + (row + i) * 16, d[i]);
      }
    }
  }

  // Adds the values of the chunks [first, end), each of so many tiles.
  static void add_chunks(const uint16_t* values, int64_t tiles, const uint16_t* weights, int64_t first, int64_t end,
                         float* sums) {
    for (int64_t tile = 0; tile < tiles; ++tile, sums += kResult) {
      __m512 c[16];
      for (int i = 0; i < 16; ++i) c[i] = _mm512_load_ps(sums + 16 * i);
      for (int64_t chunk = first; chunk < end; ++chunk)
        add(values + (chunk * tiles + tile) * kTile, 32, weights + chunk * kTile, c);
      for (int i = 0; i < 16; ++i) _mm512_store_ps(sums + 16 * i, c[i]);
    }
  }

  static void add_pair_chunks(const uint16_t* values, int64_t tiles, const uint16_t* weights, const uint16_t* others,
                              int64_t first, int64_t end, float* sums, float* other_sums) {
    for (int64_t row = 0; row < 16 * tiles; row += 8, sums += 128, other_sums += 128) {
      __m512 c[8], d[8];
      for (int i = 0; i < 8; ++i) c[i] = _mm512_load_ps(sums + 16 * i), d[i] = _mm512_load_ps(other_sums + 16 * i);
      for (int64_t chunk = first; chunk < end; ++chunk)
        add_pair(values + chunk * tiles * kTile + row * 32, weights + chunk * kTile, others + chunk * kTile, c, d);
      for (int i = 0; i < 8; ++i) _mm512_store_ps(sums + 16 * i, c[i]), _mm512_store_ps(other_sums + 16 * i, d[i]);
    }
  }

  // Of some rows of q, by lanes that are keys: [row, key] for each tile. For fewer rows than a tile has. As many lines are
  // read ahead as the keys have, half of what is due.
  static constexpr bool kScoresByRow = true;

  static void row_scores(const uint16_t* const* keys, int64_t tiles, int64_t stride, const uint16_t* q, int64_t steps,
                         int rows, float* to, ReadAhead& ahead) {
    for (int64_t tile = 0; tile < tiles; ++tile, to += kResult)
      for (int row = 0; row < rows; row += 4)
        four_row_scores(keys[tile], stride, q + 2 * row, steps, to + 16 * row, row == 0 ? &ahead : nullptr);
  }

  static void four_row_scores(const uint16_t* keys, int64_t stride, const uint16_t* q, int64_t steps, float* to,
                              ReadAhead* ahead) {
    __m512 c[4];
    for (auto& row : c) row = _mm512_setzero_ps();
    for (int64_t step = 0; step < steps; ++step, keys += 32, q += kTile) {
      __m512i pairs[16];
      for (int i = 0; i < 16; ++i) pairs[i] = _mm512_loadu_si512(keys + i * stride);
      transpose(pairs);
      for (int k = 0; k < 16; ++k) {
        if (k % 8 == 0 && ahead) ahead->read(4);
        for (int i = 0; i < 4; ++i) c[i] = _mm512_dpbf16_ps(c[i], (__m512bh)pairs[k], spread(q + 32 * k + 2 * i));
      }
    }
    for (int i = 0; i < 4; ++i) _mm512_store_ps(to + 16 * i, c[i]);
  }

  static constexpr int64_t kMostSums = kLargestHeadDim / 16;

  static void load_sums(const float*, int64_t) {}
  static void store_sums(float*, int64_t) {}

  // weights: [query, key]; values: tiles of [key, dim, 2]. The other half is read ahead, and a little more, so as not to
  // fall behind where keys are not seen.
  static void add_rows(const uint16_t* weights, int queries, const uint16_t* values, int64_t count, float* sums,
                       ReadAhead& ahead) {
    for (int64_t tile = 0; tile < count; ++tile, values += kTile, sums += kResult) {
      ahead.read(9);
      for (int query = 0; query < queries; query += 4) add_to<4>(weights + query * 32, values, sums + query * 16);
    }
  }
};

}  // namespace
}  // namespace pallas_kernels
