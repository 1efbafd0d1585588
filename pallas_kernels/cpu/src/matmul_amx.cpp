// Products by TDPBF16PS. Rows of w, as they lie in memory, are the A tile and packed tokens the B tile, so that sums
// come out as [output, token]: w is never rearranged, and up to 16 tokens cost the same reads of it.
#include <immintrin.h>

#include "amx.h"
#include "matmul.h"
#include "swiglu.h"

namespace pallas_kernels {
namespace {

constexpr int64_t kPanel = 16;               // outputs of a tile
constexpr int64_t kStepsPerSlice = 18;       // two panels of it stay in the first-level cache
constexpr int64_t kBlocksWorthCopying = 8;   // from here on, rows of w are copied first, tile by tile

inline __mmask16 first_bits(int64_t count) { return count >= 16 ? 0xffff : static_cast<__mmask16>((1u << count) - 1); }

// Outputs of so many panels.
constexpr int64_t outputs_of(const Matmul& m, int64_t panels) { return panels * kPanel / (m.gated ? 2 : 1); }

// Sums of 16 outputs as a tile: a row for each of them, and 16 tokens in it.
struct Sums {
  explicit Sums(const float* tile) {
    for (int i = 0; i < 16; ++i) token[i] = _mm512_load_si512(tile + i * 16);
    transpose_16x16(token);
  }
  __m512 of(int64_t i) const { return _mm512_castsi512_ps(token[i]); }

  __m512i token[16];
};

int64_t tokens_in(const Matmul& m, int64_t block) {
  const int64_t left = m.tokens - block * kTokensPerBlock;
  return left < kTokensPerBlock ? left : kTokensPerBlock;
}

// Writes the sums of one panel, or of two beside each other, into their columns of y.
void store_sums(const Matmul& m, const float* tile, int64_t output, int64_t block) {
  const Sums sums(tile);
  const __mmask16 mask = first_bits(m.outputs - output);
  int64_t at = block * kTokensPerBlock * m.outputs + output;
  for (int64_t i = 0; i < tokens_in(m, block); ++i, at += m.outputs) {
    if (m.y_is_float32) {
      _mm512_mask_storeu_ps(static_cast<float*>(m.y) + at, mask, sums.of(i));
    } else {
      _mm256_mask_storeu_epi16(static_cast<uint16_t*>(m.y) + at, mask, (__m256i)_mm512_cvtneps_pbh(sums.of(i)));
    }
  }
}

void store_sums(const Matmul& m, const float* tile, const float* next_tile, int64_t output, int64_t block) {
  if (m.y_is_float32 || output + 2 * kPanel > m.outputs) {
    store_sums(m, tile, output, block);
    if (output + kPanel < m.outputs) store_sums(m, next_tile, output + kPanel, block);
    return;
  }
  const Sums low(tile), high(next_tile);
  uint16_t* to = static_cast<uint16_t*>(m.y) + block * kTokensPerBlock * m.outputs + output;
  for (int64_t i = 0; i < tokens_in(m, block); ++i, to += m.outputs)
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high.of(i), low.of(i)));
}

void store_gated(const Matmul& m, const float* gate_tile, const float* up_tile, int64_t output, int64_t block) {
  const Sums gate(gate_tile), up(up_tile);
  const __mmask16 mask = first_bits(m.outputs - output);
  uint16_t* to = static_cast<uint16_t*>(m.y) + block * kTokensPerBlock * m.outputs + output;
  for (int64_t i = 0; i < tokens_in(m, block); ++i, to += m.outputs)
    _mm256_mask_storeu_epi16(to, mask, (__m256i)_mm512_cvtneps_pbh(swiglu(gate.of(i), up.of(i))));
}

// Where a panel's tiles lie: in w itself, or copied, each tile by itself. Panels come in pairs: two in a row, or, gated,
// the two that make the same outputs.
struct Rows {
  const char* start;
  int64_t row_bytes, step_bytes, panel_bytes, pair_bytes;

  const char* tile(int64_t panel, int64_t step) const {
    return start + panel % 2 * panel_bytes + panel / 2 * pair_bytes + step * step_bytes;
  }
};

// Asks for the rows of w that come next while others are being used; gated, for both of an output.
struct Ahead {
  const char* row;
  int64_t row_bytes, up_bytes, lines_per_row, lines_per_step, line = 0;

  void step() {
    for (int64_t i = 0; i < lines_per_step; ++i) {
      _mm_prefetch(row + line * 64, _MM_HINT_T1);
      if (up_bytes) _mm_prefetch(row + up_bytes + line * 64, _MM_HINT_T1);
      if (++line == lines_per_row) line = 0, row += row_bytes;
    }
  }
};

// The products of some panels with some blocks of tokens, block_bytes apart, over some steps: four sums at most, as
// tiles one after the other, are added to or begun.
template <int kPanels, int kBlocks>
inline void dot(const Rows& rows, const char* tokens, int64_t block_bytes, int64_t steps, bool add, float* sums,
                Ahead& ahead) {
  constexpr int kSums = kPanels * kBlocks;
  if (add) {
    tile_load<0>(sums, 64);
    if constexpr (kSums > 1) tile_load<1>(sums + 256, 64);
    if constexpr (kSums > 2) tile_load<2>(sums + 512, 64), tile_load<3>(sums + 768, 64);
  } else {
    tile_zero<0>();
    if constexpr (kSums > 1) tile_zero<1>();
    if constexpr (kSums > 2) tile_zero<2>(), tile_zero<3>();
  }
  for (int64_t s = 0; s < steps; ++s) {
    tile_load<6>(tokens + s * kTileBytes, 64);
    if constexpr (kBlocks > 1) tile_load<7>(tokens + block_bytes + s * kTileBytes, 64);
    tile_load<4>(rows.tile(0, s), rows.row_bytes);
    tile_dot_bf16<0, 4, 6>();
    if constexpr (kBlocks > 1) tile_dot_bf16<1, 4, 7>();
    if constexpr (kPanels > 1) {
      tile_load<5>(rows.tile(1, s), rows.row_bytes);
      tile_dot_bf16<kBlocks, 5, 6>();
      if constexpr (kBlocks > 1) tile_dot_bf16<3, 5, 7>();
    }
    if constexpr (kPanels > 2) {
      tile_load<7>(rows.tile(2, s), rows.row_bytes);
      tile_dot_bf16<2, 7, 6>();
      tile_load<4>(rows.tile(3, s), rows.row_bytes);
      tile_dot_bf16<3, 4, 6>();
    }
    ahead.step();
  }
  tile_store<0>(sums, 64);
  if constexpr (kSums > 1) tile_store<1>(sums + 256, 64);
  if constexpr (kSums > 2) tile_store<2>(sums + 512, 64), tile_store<3>(sums + 768, 64);
}

// Rows of w from an output on, from a step on, `lines` of which are asked for at each step.
inline Ahead ahead_to(const Matmul& m, int64_t output, int64_t step, int64_t steps, int64_t lines) {
  if (output == kNoOutput) return {nullptr, 0, 0, 1, 0};
  const int64_t row_bytes = m.inputs * 2, up_bytes = m.gated ? m.outputs * row_bytes : 0;
  return {reinterpret_cast<const char*>(m.w + output * m.inputs + step * kInputsPerStep), row_bytes, up_bytes, steps,
          m.gated ? (lines + 1) / 2 : lines};
}

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

struct Span {
  int64_t first, last;
};

// The outputs of a piece of work, and where the thread's next one begins (kNoOutput: there is none).
struct Outputs {
  int64_t first, last, next;

  // Whose rows will be wanted after those of `count` outputs.
  int64_t after(int64_t output, int64_t count) const { return output + count < last ? output + count : next; }
};

// Few tokens: w streams past once, its tiles taken from where they lie. Returns the first output that is left.
template <int kPanels>
int64_t stream(const Matmul& m, const char* packed, Outputs outputs, Span blocks) {
  const int64_t row_bytes = m.inputs * 2, steps = m.inputs / kInputsPerStep, block_bytes = steps * kTileBytes;
  alignas(64) float sums[4 * 256];
  const int64_t count = outputs_of(m, kPanels), panel_bytes = m.gated ? m.outputs * row_bytes : kPanel * row_bytes;
  int64_t o = outputs.first;
  for (; o + count <= outputs.last; o += count) {
    const Rows rows{reinterpret_cast<const char*>(m.w) + o * row_bytes, row_bytes, 64, panel_bytes,
                    outputs_of(m, 2) * row_bytes};
    Ahead ahead = ahead_to(m, outputs.after(o, count), 0, steps, kPanels * kPanel);
    for (int64_t b = blocks.first; b < blocks.last; ahead.lines_per_step = 0) {
      const char* tokens = packed + b * block_bytes;
      if constexpr (kPanels <= 2) {
        if (b + 2 <= blocks.last) {
          dot<kPanels, 2>(rows, tokens, block_bytes, steps, false, sums, ahead);
          store<kPanels, 2>(m, sums, o, b);
          b += 2;
          continue;
        }
      }
      dot<kPanels, 1>(rows, tokens, block_bytes, steps, false, sums, ahead);
      store<kPanels, 1>(m, sums, o, b);
      b += 1;
    }
  }
  return o;
}

// Copies one panel's rows of w, those of outputs or, gated, of their other half, over some steps, a tile after the other,
// with zeros beyond the ends of w.
void copy_panel(const Matmul& m, int64_t output, bool up, int64_t first_step, int64_t steps, char* to) {
  for (int64_t row = 0; row < kPanel; ++row) {
    const uint16_t* from = m.w + ((up ? m.outputs : 0) + output + row) * m.inputs;
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t first = (first_step + s) * kInputsPerStep, left = m.inputs - first;
      __mmask32 mask = left >= 32 ? 0xffffffff : (1u << left) - 1;
      if (output + row >= m.outputs) mask = 0;
      _mm512_store_si512(to + s * kTileBytes + row * 64, _mm512_maskz_loadu_epi16(mask, mask ? from + first : m.w));
    }
  }
}

// Many tokens, or ends that fill no tile: slices of the inputs of panels are copied, and serve all blocks of tokens.
template <int kPanels>
void reuse(const Matmul& m, const char* packed, int64_t output, Outputs outputs, Span blocks) {
  alignas(64) char copy[kPanels * kStepsPerSlice * kTileBytes];
  alignas(64) float sums[kPanels * kBlocksPerCall * 256];
  const int64_t all_steps = num_steps(m.inputs), block_bytes = all_steps * kTileBytes;
  const int64_t slices = (all_steps + kStepsPerSlice - 1) / kStepsPerSlice, per_slice = (all_steps + slices - 1) / slices;
  const Rows rows{copy, 64, kTileBytes, kStepsPerSlice * kTileBytes, 2 * kStepsPerSlice * kTileBytes};
  const int64_t pairs = (blocks.last - blocks.first + 1) / 2, lines = (kPanels * kPanel + pairs - 1) / pairs;
  for (int64_t step = 0; step < all_steps; step += per_slice) {
    const int64_t steps = step + per_slice < all_steps ? per_slice : all_steps - step;
    const bool add = step > 0, done = step + steps == all_steps;
    for (int p = 0; p < kPanels; ++p)
      copy_panel(m, m.gated ? output : output + p * kPanel, m.gated && p == 1, step, steps, copy + p * rows.panel_bytes);
    Ahead ahead = done ? ahead_to(m, outputs.after(output, outputs_of(m, kPanels)), 0, per_slice, lines)
                       : ahead_to(m, output, step + steps, per_slice, lines);
    for (int64_t b = blocks.first; b < blocks.last;) {
      const char* tokens = packed + b * block_bytes + step * kTileBytes;
      float* at = slices > 1 ? sums + (b - blocks.first) * kPanels * 256 : sums;
      if (b + 2 <= blocks.last) {
        dot<kPanels, 2>(rows, tokens, block_bytes, steps, add, at, ahead);
        if (done) store<kPanels, 2>(m, at, output, b);
        b += 2;
      } else {
        dot<kPanels, 1>(rows, tokens, block_bytes, steps, add, at, ahead);
        if (done) store<kPanels, 1>(m, at, output, b);
        b += 1;
      }
    }
  }
}

}  // namespace

void matmul_amx_pack(const Matmul& m, void* packed, int64_t block) {
  const int64_t first = block * kTokensPerBlock, count = m.tokens - first < 16 ? m.tokens - first : 16;
  const int64_t steps = num_steps(m.inputs);
  char* to = static_cast<char*>(packed) + block * steps * kTileBytes;
  for (int64_t s = 0; s < steps; ++s, to += kTileBytes) {
    const int64_t input = s * kInputsPerStep, left = m.inputs - input;
    const __mmask32 mask = left >= 32 ? 0xffffffff : (1u << left) - 1;
    __m512i row[16];
    for (int64_t i = 0; i < 16; ++i)
      row[i] = _mm512_maskz_loadu_epi16(i < count ? mask : 0, m.x + (i < count ? (first + i) * m.inputs + input : 0));
    transpose_16x16(row);
    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + i * 64, row[i]);
  }
}

void matmul_amx(const Matmul& m, const void* packed, int64_t first_output, int64_t last_output, int64_t first_block,
                int64_t last_block, int64_t next_output) {
  const FullTiles tiles;
  const char* tokens = static_cast<const char*>(packed);
  const Span blocks{first_block, last_block};
  Outputs outputs{first_output, last_output, next_output};
  if (blocks.last - blocks.first < kBlocksWorthCopying && m.inputs % kInputsPerStep == 0) {
    if (blocks.last - blocks.first == 1) outputs.first = stream<4>(m, tokens, outputs, blocks);
    outputs.first = stream<2>(m, tokens, outputs, blocks);
    if (!m.gated) outputs.first = stream<1>(m, tokens, outputs, blocks);
  }
  for (int64_t o = outputs.first; o < last_output; o += outputs_of(m, 2)) {
    if (m.gated || o + kPanel < last_output) {
      reuse<2>(m, tokens, o, outputs, blocks);
    } else {
      reuse<1>(m, tokens, o, outputs, blocks);
    }
  }
}

}  // namespace pallas_kernels
