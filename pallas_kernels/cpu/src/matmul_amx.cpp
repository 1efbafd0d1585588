// Products by TDPBF16PS. Rows of w, as they lie in memory, are the A tile and packed tokens the B tile, so that sums
// come out as [output, token]: w is never rearranged, and up to 16 tokens cost the same reads of it.
#include <immintrin.h>

#include "amx.h"
#include "matmul.h"

namespace pallas_kernels {
namespace {

constexpr int64_t kPanel = 16;               // outputs of a tile
constexpr int64_t kStepsPerSlice = 18;       // two panels of it stay in the first-level cache
constexpr int64_t kBlocksWorthCopying = 8;   // from here on, rows of w are copied first, tile by tile

inline __mmask16 first_bits(int64_t count) { return count >= 16 ? 0xffff : static_cast<__mmask16>((1u << count) - 1); }

// Sums of 16 outputs, as a tile, into their 16 columns of y.
inline void store_sums(const Matmul& m, const float* sums, int64_t output, int64_t block) {
  __m512i row[16];
  for (int i = 0; i < 16; ++i) row[i] = _mm512_load_si512(sums + i * 16);
  transpose_16x16(row);
  const int64_t first = block * kTokensPerBlock, left = m.tokens - first, count = left < 16 ? left : 16;
  const __mmask16 mask = first_bits(m.outputs - output);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = (first + i) * m.outputs + output;
    const __m512 values = _mm512_castsi512_ps(row[i]);
    if (m.y_is_float32) {
      _mm512_mask_storeu_ps(static_cast<float*>(m.y) + at, mask, values);
    } else {
      _mm256_mask_storeu_epi16(static_cast<uint16_t*>(m.y) + at, mask, (__m256i)_mm512_cvtneps_pbh(values));
    }
  }
}

// Where a panel's tiles lie: in w itself, or copied, each tile by itself.
struct Rows {
  const char* start;
  int64_t row_bytes, step_bytes, panel_bytes;

  const char* tile(int64_t panel, int64_t step) const { return start + panel * panel_bytes + step * step_bytes; }
};

// Asks for the rows of w that come next while others are being used.
struct Ahead {
  const char* row = nullptr;
  int64_t row_bytes = 0, lines_per_row = 1, lines_per_step = 0, line = 0;

  void step() {
    for (int64_t i = 0; i < lines_per_step; ++i) {
      _mm_prefetch(row + line * 64, _MM_HINT_T1);
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

template <int kPanels, int kBlocks>
inline void store(const Matmul& m, const float* sums, int64_t output, int64_t block) {
  for (int p = 0; p < kPanels; ++p)
    for (int b = 0; b < kBlocks; ++b) store_sums(m, sums + (p * kBlocks + b) * 256, output + p * kPanel, block + b);
}

struct Span {
  int64_t first, last;
};

// Few tokens: w streams past once, its tiles taken from where they lie.
template <int kPanels>
void stream(const Matmul& m, const char* packed, Span outputs, Span blocks) {
  const int64_t row_bytes = m.inputs * 2, steps = m.inputs / kInputsPerStep, block_bytes = steps * kTileBytes;
  alignas(64) float sums[4 * 256];
  for (int64_t o = outputs.first; o + kPanels * kPanel <= outputs.last; o += kPanels * kPanel) {
    const Rows rows{reinterpret_cast<const char*>(m.w) + o * row_bytes, row_bytes, 64, kPanel * row_bytes};
    Ahead ahead{rows.start + kPanels * rows.panel_bytes, row_bytes, steps, kPanels * kPanel};
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
}

// Copies one panel's rows of w over some steps, a tile after the other, with zeros beyond the ends of w.
void copy_panel(const Matmul& m, int64_t output, int64_t first_step, int64_t steps, char* to) {
  for (int64_t row = 0; row < kPanel; ++row) {
    const uint16_t* from = m.w + (output + row) * m.inputs;
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
void reuse(const Matmul& m, const char* packed, int64_t output, Span blocks) {
  alignas(64) char copy[kPanels * kStepsPerSlice * kTileBytes];
  alignas(64) float sums[kPanels * kBlocksPerCall * 256];
  const int64_t all_steps = num_steps(m.inputs), block_bytes = all_steps * kTileBytes;
  const int64_t slices = (all_steps + kStepsPerSlice - 1) / kStepsPerSlice, per_slice = (all_steps + slices - 1) / slices;
  const Rows rows{copy, 64, kTileBytes, kStepsPerSlice * kTileBytes};
  const int64_t pairs = (blocks.last - blocks.first + 1) / 2, row_bytes = m.inputs * 2;
  const char* panels = reinterpret_cast<const char*>(m.w) + output * row_bytes;
  for (int64_t step = 0; step < all_steps; step += per_slice) {
    const int64_t steps = step + per_slice < all_steps ? per_slice : all_steps - step;
    const bool add = step > 0, done = step + steps == all_steps;
    for (int p = 0; p < kPanels; ++p)
      copy_panel(m, output + p * kPanel, step, steps, copy + p * rows.panel_bytes);
    const char* next = done ? panels + kPanels * kPanel * row_bytes : panels + (step + steps) * 64;
    Ahead ahead{next, row_bytes, per_slice, (kPanels * kPanel + pairs - 1) / pairs};
    for (int64_t b = blocks.first; b < blocks.last;) {
      const char* tokens = packed + b * block_bytes + step * kTileBytes;
      float* at = sums + (b - blocks.first) * kPanels * 256;
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
                int64_t last_block) {
  const FullTiles tiles;
  const char* tokens = static_cast<const char*>(packed);
  const Span blocks{first_block, last_block};
  int64_t o = first_output;
  if (blocks.last - blocks.first < kBlocksWorthCopying && m.inputs % kInputsPerStep == 0) {
    if (blocks.last - blocks.first == 1) {
      stream<4>(m, tokens, {o, last_output}, blocks);
      o += (last_output - o) / (4 * kPanel) * (4 * kPanel);
    }
    stream<2>(m, tokens, {o, last_output}, blocks);
    o += (last_output - o) / (2 * kPanel) * (2 * kPanel);
    stream<1>(m, tokens, {o, last_output}, blocks);
    o += (last_output - o) / kPanel * kPanel;
  }
  for (; o + kPanel < last_output; o += 2 * kPanel) reuse<2>(m, tokens, o, blocks);
  if (o < last_output) reuse<1>(m, tokens, o, blocks);
}

}  // namespace pallas_kernels
