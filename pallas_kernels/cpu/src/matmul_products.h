// All outputs of a piece of work, whatever the format of w. Included by sources that are compiled for one instruction set,
// and by nothing else.
#pragma once

#include "gguf_decoders.h"
#include "matmul_reuse.h"

namespace pallas_kernels {
namespace {

// Rows of w from an output on, from a step on, `lines` of which are asked for at each step.
inline Ahead ahead_to(const Matmul& m, int64_t output, int64_t step, int64_t rows, int64_t steps, int64_t lines) {
  if (output == kNoOutput) return {nullptr, 0, 0, 0, 1, 0};
  const char* first = reinterpret_cast<const char*>(m.w) + output * m.row_bytes + step * 64;
  const int64_t parts = m.gated ? 2 : 1;
  return {first, m.row_bytes, m.gated ? m.outputs * m.row_bytes : 0, rows / parts, steps, (lines + parts - 1) / parts};
}

// Rows of w in bfloat16 or int8, copied with zeros beyond the ends of w.
template <typename Numbers_>
struct Copied {
  using Numbers = Numbers_;
  static constexpr int64_t kMaxSteps = kSliceSteps;

  explicit Copied(const Matmul& m) : m(m) {}

  int64_t steps_in_block() const { return 1; }

  void fill(int64_t row, int64_t count, int64_t first_step, int64_t steps, char* to, Place) const {
    const uint8_t* from = m.w + row * m.row_bytes + first_step * 64;
    if (count >= kPanel && (first_step + steps) * kInputsPerStep <= m.inputs) {
      for (int64_t r = 0; r < kPanel; ++r, from += m.row_bytes, to += 64)
        for (int64_t s = 0; s < steps; ++s) _mm512_store_si512(to + s * kStepBytes, _mm512_loadu_si512(from + s * 64));
      return;
    }
    for (int64_t r = 0; r < kPanel; ++r, from += m.row_bytes, to += 64)
      for (int64_t s = 0; s < steps; ++s) {
        const int64_t left = r < count ? m.inputs - (first_step + s) * kInputsPerStep : 0;
        const uint32_t mask = left >= 32 ? 0xffffffff : (1u << left) - 1;
        const uint8_t* at = left > 0 ? from + s * 64 : m.w;
        _mm512_store_si512(to + s * kStepBytes, _mm512_maskz_loadu_epi16(mask, reinterpret_cast<const uint16_t*>(at)));
      }
  }

  Ahead ahead(Place next, int64_t rows, int64_t steps, int64_t lines) const {
    return ahead_to(m, next.row, next.step, rows, steps, lines);
  }

  const Matmul& m;
};

// Rows of w in blocks, decoded.
struct Decoded {
  using Numbers = BFloat16;
  static constexpr int64_t kMaxSteps = 16;  // two panels of it stay in the first-level cache

  explicit Decoded(const Matmul& m) : m(m), decode(decoder_of(m.kind)), block(block_of(m.kind)) {}

  int64_t steps_in_block() const { return block.elements > kInputsPerStep ? block.elements / kInputsPerStep : 1; }

  void fill(int64_t row, int64_t count, int64_t step, int64_t steps, char* to, Place next) const {
    const int64_t bytes = (next.step - step) * kInputsPerStep / block.elements * block.bytes;
    const int64_t ahead = next.row == kNoOutput ? 0 : (next.row - row) * m.row_bytes + bytes;
    const int64_t stored = count < kPanel ? count : kPanel;
    decode({m.w + row * m.row_bytes, m.row_bytes, stored}, step, steps, to, {64, kStepBytes}, ahead);
    for (int64_t r = stored; r < kPanel; ++r)
      for (int64_t s = 0; s < steps; ++s) _mm512_store_si512(to + r * 64 + s * kStepBytes, _mm512_setzero_si512());
  }

  Ahead ahead(Place, int64_t, int64_t, int64_t) const { return {nullptr, 0, 0, 0, 1, 0}; }  // decoding does it

  const Matmul& m;
  const Decode decode;
  const Block block;
};

// Rows of bfloat16 or int8 as they lie in memory, as many panels at a time. Returns the first output that is left.
template <typename Numbers, int kPanels>
int64_t stream(const Matmul& m, const char* packed, Outputs outputs, Span blocks) {
  constexpr int kBlocks = kPanels <= 2 ? 2 : 1;
  const int64_t steps = m.inputs / kInputsPerStep, block_bytes = steps * kStepBytes, count = outputs_of(m, kPanels);
  const int64_t panel_bytes = (m.gated ? m.outputs : kPanel) * m.row_bytes, pair_bytes = outputs_of(m, 2) * m.row_bytes;
  const int64_t times = (blocks.last - blocks.first + kBlocks - 1) / kBlocks * times_ahead(kPanels);
  alignas(64) float sums[kPanels * kBlocks * 256];
  int64_t o = outputs.first;
  for (; o + count <= outputs.last; o += count) {
    const char* first = reinterpret_cast<const char*>(m.w) + o * m.row_bytes;
    const Rows rows{first, m.row_bytes, 64, panel_bytes, pair_bytes};
    Ahead ahead = ahead_to(m, outputs.after(o, count), 0, kPanels * kPanel, steps, (kPanels * kPanel + times - 1) / times);
    for (int64_t b = blocks.first; b < blocks.last;) {
      const char* tokens = packed + b * block_bytes;
      if (b + kBlocks <= blocks.last) {
        dot<Numbers, kPanels, kBlocks>(rows, tokens, block_bytes, steps, false, sums, ahead);
        store<kPanels, kBlocks>(m, sums, o, b);
        b += kBlocks;
      } else {
        const int64_t left = m.not_zeros - b * tokens_per_block(m);
        dot_streamed<Numbers, kPanels>(rows, tokens, std::min(tokens_in(m, b), left), steps, sums, ahead);
        store<kPanels, 1>(m, sums, o, b);
        b += 1;
      }
    }
  }
  return o;
}

// Rows of bfloat16 or int8; copied where they are fewer than a panel, or end within a step.
template <typename Numbers>
void multiply_plain(const Matmul& m, const char* packed, Outputs outputs, Span blocks) {
  if (blocks.last - blocks.first < kBlocksWorthCopying && m.inputs % kInputsPerStep == 0) {
    if (kPanelsOfOneBlock > 2 && blocks.last - blocks.first == 1)
      outputs.first = stream<Numbers, kPanelsOfOneBlock>(m, packed, outputs, blocks);
    outputs.first = stream<Numbers, 2>(m, packed, outputs, blocks);
    if (!m.gated) outputs.first = stream<Numbers, 1>(m, packed, outputs, blocks);
  }
  reuse_all(Copied<Numbers>(m), m, packed, outputs, blocks);
}

// Whatever the format of w.
inline void multiply_any(const Matmul& m, const void* packed, Outputs outputs, Span blocks) {
  const char* x = static_cast<const char*>(packed);
  if (m.kind == GGUFKind::kI8)
    multiply_plain<Int8>(m, x, outputs, blocks);
  else if (is_plain(m))
    multiply_plain<BFloat16>(m, x, outputs, blocks);
  else
    reuse_all(Decoded(m), m, x, outputs, blocks);
}

}  // namespace
}  // namespace pallas_kernels
