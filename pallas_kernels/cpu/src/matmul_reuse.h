// Products with rows of w that are copied, or decoded, into the first-level cache, slice by slice, and serve all tokens
// there. Included by matmul_products.h, and by nothing else.
#pragma once

#if defined(__AMX_TILE__)
#include "matmul_dot_amx.h"
#elif defined(__AVX512F__)
#include "matmul_dot_vectors.h"
#else
#include "matmul_dot_narrow.h"
#endif

namespace pallas_kernels {
namespace {

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
  alignas(64) char copy[kPanels * kMaxSteps * kStepBytes];
  alignas(64) float sums[kPanels * kBlocksPerCall * 256];
  const int64_t all_steps = num_steps(m.inputs), block_bytes = all_steps * kStepBytes, unit = source.steps_in_block();
  const int64_t slices = (all_steps + kMaxSteps - 1) / kMaxSteps;
  const int64_t per_slice = ((all_steps + slices - 1) / slices + unit - 1) / unit * unit;
  const Rows rows{copy, 64, kStepBytes, kMaxSteps * kStepBytes, 2 * kMaxSteps * kStepBytes};
  const int64_t pairs = (blocks.last - blocks.first + 1) / 2, times = pairs * times_ahead(kPanels);
  const int64_t lines = (kPanels * kPanel + times - 1) / times;
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
      const char* tokens = packed + b * block_bytes + step * kStepBytes;
      float* at = slices > 1 ? sums + (b - blocks.first) * kPanels * 256 : sums;
      if (b + 2 <= blocks.last) {
        dot<typename Source::Numbers, kPanels, 2>(rows, tokens, block_bytes, steps, add, at, ahead);
        if (done) store<kPanels, 2>(m, at, output, b);
        b += 2;
      } else {
        const int64_t count = std::min(tokens_in(m, b), m.not_zeros - b * tokens_per_block(m));
        dot_one<typename Source::Numbers, kPanels>(rows, tokens, count, steps, add, at, ahead);
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
