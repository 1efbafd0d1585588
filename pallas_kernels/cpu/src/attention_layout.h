// The scratch memory that the attention of a tile works in.
#pragma once

#include "attention.h"

namespace pallas_kernels {
namespace {

constexpr int kKeyTile = 16;  // keys in a left operand of the scores
constexpr int kChunk = 32;    // keys in an operand of the weighted values
constexpr int kTile = 512;    // bfloat16 numbers in an operand tile
constexpr int kResult = 256;  // float32 numbers in a result tile

// Where each part of a tile's scratch memory begins.
struct Layout {
  Layout(const Attention& a, int64_t lanes) {
    tiles = tiles_of(lanes);
    steps = (a.head_dim + 31) / 32;
    byte_steps = (a.head_dim + 63) / 64;
    const int64_t padded_dim = a.k_scales ? 64 * byte_steps : 32 * steps;
    size_t at = 0;
    const auto take = [&at](size_t bytes) {
      const size_t here = at;
      at += (bytes + 63) / 64 * 64;
      return here;
    };
    lanes_at = take(tiles * kLanes * 4 * sizeof(int32_t));
    bounds = take(tiles * 4 * sizeof(int32_t));
    q = take(tiles * (a.k_scales ? 2 * byte_steps : steps) * kTile * sizeof(uint16_t));
    keys = take(kGroup * padded_dim * sizeof(uint16_t));
    values = take(kGroup * padded_dim * sizeof(uint16_t));
    scores = take(2 * kGroup * kLanes * sizeof(float));
    weights = take(2 * (kGroup / kChunk) * kTile * sizeof(uint16_t));
    if (a.k_scales) {
      k_scales = take(kGroup * sizeof(float));
      v_scales = take(kGroup * sizeof(float));
      q_scales = take(tiles * kLanes * sizeof(float));
      weight_scales = take(kLanes * sizeof(float));
      sums = take(2 * 4 * kResult * sizeof(int32_t));
    }
    span = take(tiles * state_floats(padded_dim) * sizeof(float));
    all = take(tiles * state_floats(padded_dim) * sizeof(float));
    bytes = at;
  }

  int64_t tiles;
  int64_t steps, byte_steps;  // operands that the dims fill: of 32 numbers in bfloat16, of 64 bytes
  size_t lanes_at, bounds, q, keys, values, scores, weights, span, all, bytes;
  size_t k_scales = 0, v_scales = 0, q_scales = 0, weight_scales = 0, sums = 0;  // of a cache of bytes
};

}  // namespace
}  // namespace pallas_kernels
