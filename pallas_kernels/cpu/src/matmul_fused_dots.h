// Dot products of rows in the order of VDPBF16PS, by fused multiplications and additions of float32, and of bytes by
// products of 16 bits: lanes run along the inputs, as in matmul_vector_dots.h, and sums are the same to the bit.
#pragma once

#include "fused.h"
#include "matmul.h"

namespace pallas_kernels {
namespace {

constexpr int kTokensAtOnce = 3, kInt8TokensAtOnce = 2, kOutputsAtOnce = 4;

inline uint16_t rounded(float x) { return static_cast<uint16_t>(((Unsigned32)rounded_to_bfloat16(x - Floats{}))[0] >> 16); }

// Of some of the 16 lanes, in parts from number kFirst on.
template <int kFirst, int kCount, int kTokens, int kOutputs>
void add_dots(const Matmul& m, const uint16_t* w, int64_t t, Floats (&sums)[kTokens][kOutputs][kParts]) {
  Floats sum[kTokens][kOutputs][kCount];
  for (auto& row : sum)
    for (auto& s : row)
      for (auto& lanes : s) lanes = Floats{};
  const auto step = [&](const uint16_t* x_at, const uint16_t* w_at, int64_t stride) {
    Pair a[kOutputs][kCount];
    for (int c = 0; c < kOutputs; ++c)
      for (int p = 0; p < kCount; ++p) a[c][p] = load_pair(w_at + c * stride + (kFirst + p) * 2 * kPartLanes);
    for (int r = 0; r < kTokens; ++r)
      for (int p = 0; p < kCount; ++p) {
        const Pair b = load_pair(x_at + r * stride + (kFirst + p) * 2 * kPartLanes);
        for (int c = 0; c < kOutputs; ++c) sum[r][c][p] = add_products(b, a[c][p], sum[r][c][p]);
      }
  };
  const uint16_t* x = m.x + t * m.inputs;
  int64_t i = 0;
  for (; i + 32 <= m.inputs; i += 32) step(x + i, w + i, m.inputs);
  if (const size_t left = static_cast<size_t>(m.inputs - i); left > 0) {
    uint16_t last_x[kTokens][32] = {}, last_w[kOutputs][32] = {};
    for (int r = 0; r < kTokens; ++r) std::memcpy(last_x[r], x + r * m.inputs + i, left * sizeof(uint16_t));
    for (int c = 0; c < kOutputs; ++c) std::memcpy(last_w[c], w + c * m.inputs + i, left * sizeof(uint16_t));
    step(last_x[0], last_w[0], 32);
  }
  for (int r = 0; r < kTokens; ++r)
    for (int c = 0; c < kOutputs; ++c)
      for (int p = 0; p < kCount; ++p) sums[r][c][kFirst + p] = sum[r][c][p];
}

// Sums of kTokens tokens with kOutputs rows, which lie at w and are rows of m.w from number `row` on. Several tokens take
// the registers of all lanes but one part at a time.
template <int kTokens, int kOutputs>
void bfloat16_dots(const Matmul& m, const uint16_t* w, int64_t t, float (&sums)[kTokens][kOutputs]) {
  Floats lanes[kTokens][kOutputs][kParts];
  if constexpr (kTokens == 1) {
    add_dots<0, 2>(m, w, t, lanes);
    if constexpr (kParts == 4) add_dots<2, 2>(m, w, t, lanes);
  } else {
    add_dots<0, 1>(m, w, t, lanes);
    add_dots<1, 1>(m, w, t, lanes);
    if constexpr (kParts == 4) add_dots<2, 1>(m, w, t, lanes), add_dots<3, 1>(m, w, t, lanes);
  }
  for (int r = 0; r < kTokens; ++r)
    for (int c = 0; c < kOutputs; ++c) {
      __m512 all;
      for (int p = 0; p < kParts; ++p) all.part[p] = lanes[r][c][p];
      sums[r][c] = _mm512_reduce_add_ps(all);
    }
}

// Sums of kTokens rows of bytes of x, from number x_row on, with kOutputs rows of bytes.
template <int kTokens, int kOutputs>
void int8_dots(const Matmul& m, const uint16_t* w, int64_t x_row, int32_t (&sums)[kTokens][kOutputs]) {
  Ints sum[kTokens][kOutputs];
  for (auto& row : sum)
    for (auto& s : row) s = Ints{};
  const int64_t bytes = 2 * m.inputs;
  const int8_t *w_bytes = reinterpret_cast<const int8_t*>(w), *x = reinterpret_cast<const int8_t*>(m.x) + x_row * bytes;
  for (int64_t i = 0; i < bytes; i += kPartBytes / 2) {
    Ints a[kOutputs];
    for (int c = 0; c < kOutputs; ++c) a[c] = widened_bytes(w_bytes + c * bytes + i);
    for (int r = 0; r < kTokens; ++r) {
      const Ints b = widened_bytes(x + r * bytes + i);
      for (int c = 0; c < kOutputs; ++c) sum[r][c] = add_products_16(sum[r][c], b, a[c]);
    }
  }
  for (int r = 0; r < kTokens; ++r)
    for (int c = 0; c < kOutputs; ++c) {
      int32_t total = 0;
      for (int i = 0; i < kPartLanes; ++i) total += ((Signed32)sum[r][c])[i];
      sums[r][c] = total;
    }
}

}  // namespace
}  // namespace pallas_kernels
