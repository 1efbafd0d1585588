// Tile products of attention by VDPBF16PS, or what stands for it in registers of 512 bits.
#pragma once

#include <string.h>

#include "attention_layout.h"
#include "transpose.h"
#include "vectors.h"

namespace pallas_kernels {
namespace {

struct VectorDot {
  // c[rows, 16] += a[rows, 2 * 16] b[16, 16, 2]
  template <int kRows>
  static void add(const uint16_t* a, int64_t stride, const uint16_t* b, __m512 (&c)[kRows]) {
    for (int k = 0; k < 16; ++k) {
      const __m512bh right = (__m512bh)_mm512_load_si512(b + 32 * k);
      for (int i = 0; i < kRows; ++i) {
        int32_t pair;
        memcpy(&pair, a + i * stride + 2 * k, sizeof pair);
        c[i] = _mm512_dpbf16_ps(c[i], (__m512bh)_mm512_set1_epi32(pair), right);
      }
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

  // Rows of keys are `stride` numbers apart; those of a step one after the other if that is 32.
  static void scores(const uint16_t* const* keys, int64_t tiles, int64_t stride, const uint16_t* q, int64_t steps,
                     float* to) {
    for (int64_t tile = 0; tile < tiles; ++tile, to += kResult) {
      __m512 c[16];
      for (auto& row : c) row = _mm512_setzero_ps();
      if (stride == 32)
        for (int64_t step = 0; step < steps; ++step) add(keys[tile] + step * kTile, 32, q + step * kTile, c);
      else
        for (int64_t step = 0; step < steps; ++step) add(keys[tile] + 32 * step, stride, q + step * kTile, c);
      for (int i = 0; i < 16; ++i) _mm512_store_ps(to + 16 * i, c[i]);
    }
  }
  static constexpr bool kKeysByStep = true, kValuesLast = true;

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

  // Of some rows of q, by lanes that are keys: [row, key] for each tile. For fewer rows than a tile has.
  static constexpr bool kScoresByRow = true;

  static void row_scores(const uint16_t* const* keys, int64_t tiles, int64_t stride, const uint16_t* q, int64_t steps,
                         int rows, float* to) {
    for (int64_t tile = 0; tile < tiles; ++tile, to += kResult)
      for (int row = 0; row < rows; row += 4) four_row_scores(keys[tile], stride, q + 2 * row, steps, to + 16 * row);
  }

  static void four_row_scores(const uint16_t* keys, int64_t stride, const uint16_t* q, int64_t steps, float* to) {
    __m512 c[4];
    for (auto& row : c) row = _mm512_setzero_ps();
    for (int64_t step = 0; step < steps; ++step, keys += 32, q += kTile) {
      __m512i pairs[16];
      for (int i = 0; i < 16; ++i) pairs[i] = _mm512_loadu_si512(keys + i * stride);
      transpose(pairs);
      for (int k = 0; k < 16; ++k)
        for (int i = 0; i < 4; ++i) {
          int32_t pair;
          memcpy(&pair, q + 32 * k + 2 * i, sizeof pair);
          c[i] = _mm512_dpbf16_ps(c[i], (__m512bh)pairs[k], (__m512bh)_mm512_set1_epi32(pair));
        }
    }
    for (int i = 0; i < 4; ++i) _mm512_store_ps(to + 16 * i, c[i]);
  }

  static constexpr int64_t kMostSums = kLargestHeadDim / 16;

  static void load_sums(const float*, int64_t) {}
  static void store_sums(float*, int64_t) {}

  // weights: [query, key]; values: tiles of [key, dim, 2].
  static void add_rows(const uint16_t* weights, int queries, const uint16_t* values, int64_t count, float* sums) {
    for (int64_t tile = 0; tile < count; ++tile, values += kTile, sums += kResult)
      for (int query = 0; query < queries; query += 4) add_to<4>(weights + query * 32, values, sums + query * 16);
  }
};

}  // namespace
}  // namespace pallas_kernels
