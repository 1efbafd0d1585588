// Products with rows of w in bfloat16 or int8, which AMX reads as they lie in memory: w is never rearranged.
#include "matmul_tiles.h"

namespace pallas_kernels {
namespace {

constexpr int64_t kBlocksWorthCopying = 8;  // from here on, rows of w are copied first, tile by tile

// Rows of w from an output on, from a step on, `lines` of which are asked for at each step.
inline Ahead ahead_to(const Matmul& m, int64_t output, int64_t step, int64_t rows, int64_t steps, int64_t lines) {
  if (output == kNoOutput) return {nullptr, 0, 0, 0, 1, 0};
  const char* first = reinterpret_cast<const char*>(m.w) + output * m.row_bytes + step * 64;
  const int64_t parts = m.gated ? 2 : 1;
  return {first, m.row_bytes, m.gated ? m.outputs * m.row_bytes : 0, rows / parts, steps, (lines + parts - 1) / parts};
}

// Few tokens: w streams past once, its tiles taken from where they lie. Returns the first output that is left.
template <typename Numbers, int kPanels>
int64_t stream(const Matmul& m, const char* packed, Outputs outputs, Span blocks) {
  const int64_t row_bytes = m.row_bytes, steps = m.inputs / kInputsPerStep, block_bytes = steps * kTileBytes;
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

// Many tokens, or ends that fill no tile: rows of w are copied, with zeros beyond the ends of w.
template <typename Numbers_>
struct Copied {
  using Numbers = Numbers_;
  static constexpr int64_t kMaxSteps = 9;  // two panels of it stay in the first-level cache, whatever passes beside them

  explicit Copied(const Matmul& m) : m(m) {}

  int64_t steps_in_block() const { return 1; }

  void fill(int64_t row, int64_t count, int64_t first_step, int64_t steps, char* to, Place) const {
    for (int64_t r = 0; r < kPanel; ++r) {
      const uint8_t* from = m.w + (row + r) * m.row_bytes;
      for (int64_t s = 0; s < steps; ++s) {
        const int64_t first = (first_step + s) * kInputsPerStep, left = m.inputs - first;
        __mmask32 mask = left >= 32 ? 0xffffffff : (1u << left) - 1;
        if (r >= count) mask = 0;
        _mm512_store_si512(to + s * kTileBytes + r * 64, _mm512_maskz_loadu_epi16(mask, mask ? from + first * 2 : m.w));
      }
    }
  }

  Ahead ahead(Place next, int64_t rows, int64_t steps, int64_t lines) const {
    return ahead_to(m, next.row, next.step, rows, steps, lines);
  }

  const Matmul& m;
};

template <typename Numbers>
void multiply(const Matmul& m, const char* packed, Outputs outputs, Span blocks) {
  if (blocks.last - blocks.first < kBlocksWorthCopying && m.inputs % kInputsPerStep == 0) {
    if (blocks.last - blocks.first == 1) outputs.first = stream<Numbers, 4>(m, packed, outputs, blocks);
    outputs.first = stream<Numbers, 2>(m, packed, outputs, blocks);
    if (!m.gated) outputs.first = stream<Numbers, 1>(m, packed, outputs, blocks);
  }
  reuse_all(Copied<Numbers>(m), m, packed, outputs, blocks);
}

}  // namespace

void matmul_amx_pack(const Matmul& m, void* packed, int64_t block) {
  const int64_t first = block * kRowsPerBlock, count = m.kind == GGUFKind::kI8 ? kRowsPerBlock : tokens_in(m, block);
  const int64_t steps = num_steps(m.inputs);
  char* to = static_cast<char*>(packed) + block * steps * kTileBytes;
  for (int64_t s = 0; s < steps; ++s, to += kTileBytes) {
    const int64_t input = s * kInputsPerStep, left = m.inputs - input;
    const __mmask32 mask = left >= 32 ? 0xffffffff : (1u << left) - 1;
    __m512i row[16];
    for (int64_t i = 0; i < 16; ++i)
      row[i] = _mm512_maskz_loadu_epi16(i < count ? mask : 0, m.x + (i < count ? (first + i) * m.inputs + input : 0));
    transpose(row);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * 64, row[i]);
  }
}

void matmul_amx(const Matmul& m, const void* packed, int64_t first_output, int64_t last_output, int64_t first_block,
                int64_t last_block, int64_t next_output) {
  const FullTiles tiles;
  const auto multiply = m.kind == GGUFKind::kI8 ? pallas_kernels::multiply<Int8> : pallas_kernels::multiply<BFloat16>;
  multiply(m, static_cast<const char*>(packed), {first_output, last_output, next_output}, {first_block, last_block});
}

}  // namespace pallas_kernels
