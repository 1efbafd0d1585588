// Products of blocks of w with x rounded to 8 bits.
#include <algorithm>

#include "flush_denormals.h"
#include "lanes_bfloat16.h"
#include "matmul_a8_dot.h"

namespace pallas_kernels {
namespace {

// 32 inputs of a token. Below 2^-100 they count as zeros; if one is no number, or infinite, their factor is no number.
struct Rounded {
  explicit Rounded(const uint16_t* x) {
    const __m512 low = load_bfloat16(x, 0xffff), high = load_bfloat16(x + 16, 0xffff);
    const __m512 sizes[2] = {_mm512_abs_ps(low), _mm512_abs_ps(high)};
    const float largest = _mm512_reduce_max_ps(_mm512_max_ps(sizes[0], sizes[1]));
    const __m512 by = _mm512_set1_ps(largest >= 0x1p-100f ? 127.0f / largest : 0.0f);
    const float none = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_sub_ps(low, low), _mm512_sub_ps(high, high)));
    const auto rounded = [&](__m512 v) {
      return none == 0 ? _mm512_cvtps_epi32(_mm512_mul_ps(v, by)) : _mm512_setzero_si512();
    };
    const __m512i first = rounded(low), second = rounded(high);
    _mm512_mask_cvtepi32_storeu_epi8(codes, 0xffff, first);
    _mm512_mask_cvtepi32_storeu_epi8(codes + 16, 0xffff, second);
    sum[0] = _mm512_reduce_add_epi32(first), sum[1] = _mm512_reduce_add_epi32(second);
    factor = largest * (1.0f / 127.0f) + none;
  }

  alignas(16) uint8_t codes[kInputsPerStep];
  int sum[2];
  float factor;
};

// Sums of one block of tokens: as tiles, or, of its few tokens, as a row for each.
template <int kPanels>
void store(const Matmul& m, const float* tile, int64_t panel_sums, int64_t output, int64_t block) {
  if constexpr (kPanels == 1) {
    store_sums(m, tile, output, block);
  } else {
    const float* second = tile + panel_sums;
    m.gated ? store_gated(m, tile, second, output, block) : store_sums(m, tile, second, output, block);
  }
}

template <int kPanels>
void store_few(const Matmul& m, const float (&sums)[kPanels][256], int64_t output, int64_t block) {
  const int64_t count = tokens_in(m, block);
  if (m.gated) {
    const unsigned mask = first_bits(m.outputs - output);
    return store_gated(m, Sums(sums[0], count), Sums(sums[kPanels - 1], count), output, mask, block);
  }
  for (int p = 0; p < kPanels && output < m.outputs; ++p, output += kPanel)
    store_sums(m, Sums(sums[p], count), output, first_bits(m.outputs - output), block);
}

// Where fewer than 16 rows are left, from a copy in which the last one follows for the others.
void unpack_rows(Unpack unpack, const Block& block, StoredRows rows, int64_t first, int64_t steps, Panel& to,
                 AskRows& ahead) {
  if (rows.count >= kPanel) return unpack(rows, first, steps, to, ahead);
  constexpr int64_t kMost = kA8MaxSteps * 34;  // Q8_0
  const int64_t bytes = steps * kInputsPerStep / block.elements * block.bytes;
  alignas(64) uint8_t copy[kPanel * kMost];
  const uint8_t* from = rows.first + first * kInputsPerStep / block.elements * block.bytes;
  for (int64_t r = 0; r < kPanel; ++r)
    std::memcpy(copy + r * bytes, from + std::min(r, rows.count - 1) * rows.row_bytes, bytes);
  unpack({copy, bytes, kPanel}, 0, steps, to, ahead);
}

// Of a panel at a row: `bytes` of each row from a byte on.
AskRows rows_ahead(const Matmul& m, int64_t row, int64_t from, int64_t bytes, int64_t steps) {
  const uint8_t* first = m.w + row * m.row_bytes + from;
  if (bytes == m.row_bytes) return {first, kPanel * bytes, kPanel * bytes, 1, steps};
  return {first, m.row_bytes, bytes, bytes > 0 ? kPanel : 0, steps};
}

// The products of the panels at an output with all blocks of tokens, slice by slice. after: the output whose rows will be
// wanted next.
template <Form kForm, int kPanels>
void multiply_panels(const Matmul& m, Unpack unpack, const char* packed, int64_t output, int64_t after, Span blocks) {
  constexpr int64_t kPanelSums = kBlocksPerCall * 256;
  Panel panel[kPanels];
  alignas(64) float tiles[kPanels * kPanelSums];
  alignas(64) float few[kPanels][256];
  const Block stored = block_of(m.kind);
  const int64_t unit = stored.elements / kInputsPerStep, all_steps = m.inputs / kInputsPerStep;
  const int64_t most = kA8MaxSteps / unit * unit, slices = (all_steps + most - 1) / most;
  const int64_t per_slice = ((all_steps + slices - 1) / slices + unit - 1) / unit * unit;
  const int64_t block_bytes = all_steps * kA8StepBytes;
  const auto bytes_of = [&](int64_t steps) { return steps / unit * stored.bytes; };
  for (int64_t step = 0; step < all_steps; step += per_slice) {
    const int64_t steps = std::min(per_slice, all_steps - step);
    const bool add = step > 0, done = step + steps == all_steps;
    const int64_t next = done ? after : output, next_step = done ? 0 : step + steps;
    for (int p = 0; p < kPanels; ++p) {
      const int64_t row = output + p * (m.gated ? m.outputs : kPanel);
      const int64_t count = m.outputs - output - (m.gated ? 0 : p * kPanel);
      AskRows ahead = rows_ahead(m, next == kNoOutput ? row : row + next - output, bytes_of(next_step),
                                 next == kNoOutput ? 0 : bytes_of(std::min(per_slice, all_steps - next_step)), steps);
      unpack_rows(unpack, stored, {m.w + row * m.row_bytes, m.row_bytes, count}, step, steps, panel[p], ahead);
    }
    for (int64_t b = blocks.first; b < blocks.last;) {
      const char* x = packed + b * block_bytes + step * kA8StepBytes;
      float* const tile = tiles + (slices > 1 ? (b - blocks.first) * 256 : 0);
      const int64_t count = std::min(tokens_in(m, b), m.not_zeros - b * kRowsPerBlock);
      if (b + 2 <= blocks.last) {
        for (int p = 0; p < kPanels; ++p) dot<kForm, 2>(panel[p], x, block_bytes, steps, add, tile + p * kPanelSums);
        if (done) store<kPanels>(m, tile, kPanelSums, output, b), store<kPanels>(m, tile + 256, kPanelSums, output, b + 1);
        b += 2;
        continue;
      }
      if (count <= kA8FewTokens) {
        for (int p = 0; p < kPanels; ++p) dot_few<kForm>(panel[p], x, count, steps, add, few[p]);
        if (done && count < tokens_in(m, b))
          for (int p = 0; p < kPanels; ++p) std::memset(few[p] + count * 16, 0, (tokens_in(m, b) - count) * 64);
        if (done) store_few<kPanels>(m, few, output, b);
      } else {
        for (int p = 0; p < kPanels; ++p) dot<kForm, 1>(panel[p], x, block_bytes, steps, add, tile + p * kPanelSums);
        if (done) store<kPanels>(m, tile, kPanelSums, output, b);
      }
      b += 1;
    }
  }
}

template <Form kForm>
void multiply_all(const Matmul& m, const char* packed, int64_t first, int64_t last, Span blocks, int64_t next) {
  const Unpack unpack = unpacker_of(m.kind);
  const int64_t outputs = outputs_of(m, 2);
  for (int64_t o = first; o < last; o += outputs) {
    const int64_t after = o + outputs < last ? o + outputs : next;
    if (m.gated || o + kPanel < last) {
      multiply_panels<kForm, 2>(m, unpack, packed, o, after, blocks);
    } else {
      multiply_panels<kForm, 1>(m, unpack, packed, o, after, blocks);
    }
  }
}

}  // namespace

void INSTRUCTION_SET::pack_a8(const Matmul& m, void* packed, int64_t block) {
  const FlushDenormals flush;
  const int64_t steps = m.inputs / kInputsPerStep;
  const int excess = excess_of(m.kind);
  const Form form = form_of(m.kind);
  const uint16_t* x = m.x + block * kRowsPerBlock * m.inputs;
  char* to = static_cast<char*>(packed) + block * steps * kA8StepBytes;
  const int64_t count = std::min(tokens_in(m, block), m.not_zeros - block * kRowsPerBlock);
  for (int64_t t = 0; t < count; ++t, x += m.inputs)
    for (int64_t s = 0; s < steps; ++s) {
      const Rounded rounded(x + s * kInputsPerStep);
      char* at = to + s * kA8StepBytes + t * 4;
      for (int k = 0; k < 8; ++k) std::memcpy(at + k * 64, rounded.codes + k * 4, 4);
      std::memcpy(at + kFactorAt, &rounded.factor, 4);
      const int both = rounded.sum[0] + rounded.sum[1];
      const float weighted = rounded.factor * static_cast<float>(both);
      const int first = kZeroBits - excess * (form == Form::kTwoScales ? rounded.sum[0] : both);
      const int second = kZeroBits - excess * rounded.sum[1];
      std::memcpy(at + kFirstAt, form == Form::kMinimum ? static_cast<const void*>(&weighted) : &first, 4);
      std::memcpy(at + kSecondAt, &second, 4);
    }
}

void INSTRUCTION_SET::multiply_a8(const Matmul& m, const void* packed, int64_t first_output, int64_t last_output,
                                  int64_t first_block, int64_t last_block, int64_t next_output) {
  const FlushDenormals flush;
  const char* x = static_cast<const char*>(packed);
  const Span blocks{first_block, last_block};
  switch (form_of(m.kind)) {
    case Form::kWhole: return multiply_all<Form::kWhole>(m, x, first_output, last_output, blocks, next_output);
    case Form::kMinimum: return multiply_all<Form::kMinimum>(m, x, first_output, last_output, blocks, next_output);
    case Form::kTwoScales: return multiply_all<Form::kTwoScales>(m, x, first_output, last_output, blocks, next_output);
  }
}

}  // namespace pallas_kernels
