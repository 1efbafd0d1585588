// Dot products of rows by VDPBF16PS: lanes run along the inputs, each element has an accumulator of its own. Rows of w in
// blocks are decoded first, a few at a time.
#include <immintrin.h>

#include "gguf_rows.h"
#include "matmul.h"
#include "swiglu.h"

namespace pallas_kernels {
namespace {

inline __m512bh load(const uint16_t* p) { return (__m512bh)_mm512_loadu_si512(p); }

inline __m512bh load(const uint16_t* p, __mmask32 mask) { return (__m512bh)_mm512_maskz_loadu_epi16(mask, p); }

inline void store(const Matmul& m, int64_t t, int64_t o, float value) {
  const int64_t at = t * m.outputs + o;
  if (m.y_is_float32) {
    static_cast<float*>(m.y)[at] = value;
  } else {
    const __m128bh rounded = _mm_cvtneps_pbh(_mm_set_ss(value));
    static_cast<uint16_t*>(m.y)[at] = static_cast<uint16_t>(_mm_extract_epi16((__m128i)rounded, 0));
  }
}

// Sums of kTokens tokens with kOutputs rows, which lie at w and are rows of m.w from number `row` on.
template <int kTokens, int kOutputs>
void dots(const Matmul& m, const uint16_t* w, int64_t t, int64_t row, float (&sums)[kTokens][kOutputs]) {
  __m512 sum[kTokens][kOutputs];
  for (auto& row : sum)
    for (auto& s : row) s = _mm512_setzero_ps();
  const uint16_t* x = m.x + t * m.inputs;
  const auto step = [&](int64_t i, auto... mask) {
    __m512bh a[kOutputs];
    for (int c = 0; c < kOutputs; ++c) a[c] = load(w + c * m.inputs + i, mask...);
    for (int r = 0; r < kTokens; ++r) {
      const __m512bh b = load(x + r * m.inputs + i, mask...);
      for (int c = 0; c < kOutputs; ++c) sum[r][c] = _mm512_dpbf16_ps(sum[r][c], b, a[c]);
    }
  };
  int64_t i = 0;
  for (; i + 32 <= m.inputs; i += 32) step(i);
  if (i < m.inputs) step(i, static_cast<__mmask32>((1u << (m.inputs - i)) - 1));
  for (int r = 0; r < kTokens; ++r)
    for (int c = 0; c < kOutputs; ++c) sums[r][c] = _mm512_reduce_add_ps(sum[r][c]);
  if (m.scale == nullptr) return;
  for (int r = 0; r < kTokens; ++r)
    for (int c = 0; c < kOutputs; ++c) sums[r][c] *= m.scale[row + c];
}

template <int kTokens, int kOutputs>
void block(const Matmul& m, const uint16_t* w, const uint16_t* up, int64_t t, int64_t o) {
  float sums[kTokens][kOutputs];
  dots(m, w, t, o, sums);
  if (m.gated) {
    float ups[kTokens][kOutputs];
    dots(m, up, t, m.outputs + o, ups);
    for (int r = 0; r < kTokens; ++r)
      for (int c = 0; c < kOutputs; ++c)
        sums[r][c] = _mm512_cvtss_f32(swiglu(_mm512_set1_ps(sums[r][c]), _mm512_set1_ps(ups[r][c])));
  }
  for (int r = 0; r < kTokens; ++r)
    for (int c = 0; c < kOutputs; ++c) store(m, t + r, o + c, sums[r][c]);
}

constexpr int kOutputsAtOnce = 4;

// `count` rows of w from number `row` on in bfloat16: where they lie, or decoded into `scratch`.
const uint16_t* plain_rows(const Matmul& m, int64_t row, int64_t count, uint16_t* scratch) {
  const uint8_t* stored = m.w + row * m.row_bytes;
  if (m.kind == GGUFKind::kBF16) return reinterpret_cast<const uint16_t*>(stored);
  decoder_of(m.kind)({stored, m.row_bytes, count}, 0, num_steps(m.inputs), reinterpret_cast<char*>(scratch),
                     {2 * m.inputs, 64}, count * m.row_bytes);
  return scratch;
}

template <int kOutputs>
void rows(const Matmul& m, int64_t o, uint16_t* scratch) {
  const uint16_t* w = plain_rows(m, o, kOutputs, scratch);
  const uint16_t* up = m.gated ? plain_rows(m, m.outputs + o, kOutputs, scratch + kOutputs * m.inputs) : nullptr;
  int64_t t = 0;
  for (; t + 4 <= m.tokens; t += 4) block<4, kOutputs>(m, w, up, t, o);
  for (; t < m.tokens; ++t) block<1, kOutputs>(m, w, up, t, o);
}

}  // namespace

void matmul_avx512(const Matmul& m, int64_t first_output, int64_t last_output) {
  uint16_t* scratch = m.kind == GGUFKind::kBF16 ? nullptr : new uint16_t[2 * kOutputsAtOnce * m.inputs];
  int64_t o = first_output;
  for (; o + kOutputsAtOnce <= last_output; o += kOutputsAtOnce) rows<kOutputsAtOnce>(m, o, scratch);
  for (; o < last_output; ++o) rows<1>(m, o, scratch);
  delete[] scratch;
}

}  // namespace pallas_kernels
