// Products by AMX, which reads rows of bfloat16 or int8 as they lie in memory: w is never rearranged.
#include "matmul_products.h"

namespace pallas_kernels {
namespace {

constexpr int64_t kBlocksWorthCopying = 8;  // from here on, rows of w are copied first, tile by tile

// Few tokens: w streams past once, its tiles taken from where they lie. Returns the first output that is left.
template <typename Numbers, int kPanels>
int64_t stream(const Matmul& m, const char* packed, Outputs outputs, Span blocks) {
  const int64_t row_bytes = m.row_bytes, steps = m.inputs / kInputsPerStep, block_bytes = steps * kStepBytes;
  alignas(64) float sums[4 * 256];
  const int64_t count = outputs_of(m, kPanels), panel_bytes = m.gated ? m.outputs * row_bytes : kPanel * row_bytes;
  const int64_t passes = kPanels <= 2 ? (blocks.last - blocks.first + 1) / 2 : blocks.last - blocks.first;
  int64_t o = outputs.first;
  for (; o + count <= outputs.last; o += count) {
    const Rows rows{reinterpret_cast<const char*>(m.w) + o * row_bytes, row_bytes, 64, panel_bytes,
                    outputs_of(m, 2) * row_bytes};
    Ahead ahead = ahead_to(m, outputs.after(o, count), 0, kPanels * kPanel, steps,
                           (kPanels * kPanel + passes - 1) / passes);
    for (int64_t b = blocks.first; b < blocks.last;) {
      const char* tokens = packed + b * block_bytes;
      if constexpr (kPanels <= 2) {
        if (b + 2 <= blocks.last) {
          dot<Numbers, kPanels, 2>(rows, tokens, block_bytes, steps, false, sums, ahead);
          store<kPanels, 2>(m, sums, o, b);
          b += 2;
          continue;
        }
      }
      dot<Numbers, kPanels, 1>(rows, tokens, block_bytes, steps, false, sums, ahead);
      store<kPanels, 1>(m, sums, o, b);
      b += 1;
    }
  }
  return o;
}

template <typename Numbers>
void multiply_plain(const Matmul& m, const char* packed, Outputs outputs, Span blocks) {
  if (blocks.last - blocks.first < kBlocksWorthCopying && m.inputs % kInputsPerStep == 0) {
    if (blocks.last - blocks.first == 1) outputs.first = stream<Numbers, 4>(m, packed, outputs, blocks);
    outputs.first = stream<Numbers, 2>(m, packed, outputs, blocks);
    if (!m.gated) outputs.first = stream<Numbers, 1>(m, packed, outputs, blocks);
  }
  reuse_all(Copied<Numbers>(m), m, packed, outputs, blocks);
}

}  // namespace

void multiply_amx(const Matmul& m, const void* packed, int64_t first_output, int64_t last_output, int64_t first_block,
                  int64_t last_block, int64_t next_output) {
  const FullTiles tiles;
  const Outputs outputs{first_output, last_output, next_output};
  const Span blocks{first_block, last_block};
  const char* x = static_cast<const char*>(packed);
  if (m.kind == GGUFKind::kI8)
    multiply_plain<Int8>(m, x, outputs, blocks);
  else if (is_plain(m))
    multiply_plain<BFloat16>(m, x, outputs, blocks);
  else
    reuse_all(Decoded(m), m, x, outputs, blocks);
}

}  // namespace pallas_kernels
