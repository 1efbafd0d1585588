// Tile products of attention by fused multiplications and additions of float32: the bits of VDPBF16PS.
#pragma once

#include <string.h>

#include "attention_ahead.h"
#include "attention_layout.h"
#include "fused.h"

namespace pallas_kernels {
namespace {

struct VectorDot {
  static constexpr bool kScoresByRow = false, kPairs = false;
  static constexpr int64_t kMostSums = kLargestHeadDim / 16;

  // c[rows, 16] += a[rows, 2 * 16] b[16, 16, 2]
  template <int kRows>
  static void add(const uint16_t* a, int64_t stride, const uint16_t* b, Floats (&c)[kRows][kParts]) {
    for (int k = 0; k < 16; ++k) {
      Pair right[kParts];
      for (int p = 0; p < kParts; ++p) right[p] = load_pair(b + 32 * k + p * 2 * kPartLanes);
      for (int i = 0; i < kRows; ++i) {
        const Pair left = broadcast_pair(a + i * stride + 2 * k);
        for (int p = 0; p < kParts; ++p) c[i][p] = add_products(left, right[p], c[i][p]);
      }
    }
  }

  // With c in memory.
  template <int kRows>
  static void add_to(const uint16_t* a, int64_t stride, int64_t steps, int64_t right_step, const uint16_t* b, bool begin,
                     float* sums) {
    Floats c[kRows][kParts];
    for (int i = 0; i < kRows; ++i)
      for (int p = 0; p < kParts; ++p)
        c[i][p] = begin ? Floats{} : load_floats(sums + 16 * i + p * kPartLanes);
    for (int64_t step = 0; step < steps; ++step) add(a + 32 * step, stride, b + step * right_step, c);
    for (int i = 0; i < kRows; ++i)
      for (int p = 0; p < kParts; ++p) store_floats(sums + 16 * i + p * kPartLanes, c[i][p]);
  }

  static void scores(const uint16_t* const* keys, int64_t tiles, int64_t stride, const uint16_t* q, int64_t steps,
                     float* to) {
    for (int64_t tile = 0; tile < tiles; ++tile, to += kResult)
      for (int row = 0; row < 16; row += 4)
        add_to<4>(keys[tile] + row * stride, stride, steps, kTile, q, true, to + row * 16);
  }

  static void load_sums(const float*, int64_t) {}
  static void store_sums(float*, int64_t) {}

  static void add_values(const uint16_t* values, int64_t count, const uint16_t* weights, float* sums) {
    for (int64_t tile = 0; tile < count; ++tile, values += kTile, sums += kResult)
      for (int row = 0; row < 16; row += 4) add_to<4>(values + row * 32, 32, 1, 0, weights, false, sums + row * 16);
  }

  // weights: [query, key]; values: tiles of [key, dim, 2].
  static void add_rows(const uint16_t* weights, int queries, const uint16_t* values, int64_t count, float* sums,
                       ReadAhead& ahead) {
    ahead.read(9 * count);
    for (int64_t tile = 0; tile < count; ++tile, values += kTile, sums += kResult)
      for (int query = 0; query < queries; query += 4)
        add_to<4>(weights + query * 32, 32, 1, 0, values, false, sums + query * 16);
  }
};

}  // namespace
}  // namespace pallas_kernels
