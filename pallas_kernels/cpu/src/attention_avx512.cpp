// Attention with AVX512-BF16.
#include <string.h>

#include "attention_tile.h"

namespace pallas_kernels {
namespace {

struct VectorDot {
  // c[rows, 16] += a[rows, 2 * 16] b[16, 16, 2]
  template <int kRows>
  static void add(const uint16_t* a, int64_t stride, const uint16_t* b, __m512 (&c)[kRows]) {
    for (int k = 0; k < 16; ++k) {
      const __m512bh right = (__m512bh)_mm512_load_si512(b + 32 * k);
      for (int i = 0; i < kRows; ++i) {
        int32_t pair;
        memcpy(&pair, a + i * stride + 2 * k, sizeof pair);
        c[i] = _mm512_dpbf16_ps(c[i], (__m512bh)_mm512_set1_epi32(pair), right);
      }
    }
  }

  // The same, with c in memory and a's rows one after the other.
  template <int kRows>
  static void add_to(const uint16_t* a, const uint16_t* b, float* sums) {
    __m512 c[kRows];
    for (int i = 0; i < kRows; ++i) c[i] = _mm512_load_ps(sums + 16 * i);
    add(a, 32, b, c);
    for (int i = 0; i < kRows; ++i) _mm512_store_ps(sums + 16 * i, c[i]);
  }

  static void scores(const uint16_t* const* keys, int64_t tiles, int64_t stride, const uint16_t* q, int64_t steps,
                     float* to) {
    for (int64_t tile = 0; tile < tiles; ++tile, to += kResult) {
      __m512 c[16];
      for (auto& row : c) row = _mm512_setzero_ps();
      for (int64_t step = 0; step < steps; ++step) add(keys[tile] + 32 * step, stride, q + step * kTile, c);
      for (int i = 0; i < 16; ++i) _mm512_store_ps(to + 16 * i, c[i]);
    }
  }

  // Of products of bytes (see attention_amx.cpp), which operand is unsigned, as the instruction wants one to be. Signed
  // left operands beside signed right ones are taken 128 higher; what this adds is subtracted.
  enum class Unsigned { kNone, kLeft, kRight };

  template <Unsigned kWhich>
  static void add_bytes(const int8_t* a, int64_t stride, int64_t a_step, const int8_t* b, int64_t b_step, int64_t steps,
                        int32_t* to) {
    const __m512i higher = _mm512_set1_epi8(static_cast<char>(128));
    __m512i c[16], added = _mm512_setzero_si512();
    for (auto& row : c) row = _mm512_setzero_si512();
    for (int64_t step = 0; step < steps; ++step, a += a_step, b += b_step)
      for (int k = 0; k < 16; ++k) {
        const __m512i right = _mm512_load_si512(b + 64 * k);
        if constexpr (kWhich == Unsigned::kNone) added = _mm512_dpbusd_epi32(added, higher, right);
        for (int i = 0; i < 16; ++i) {
          int32_t quad;
          memcpy(&quad, a + i * stride + 4 * k, sizeof quad);
          __m512i left = _mm512_set1_epi32(quad);
          if constexpr (kWhich == Unsigned::kNone) left = _mm512_xor_si512(left, higher);
          if constexpr (kWhich == Unsigned::kRight)
            c[i] = _mm512_dpbusd_epi32(c[i], right, left);
          else
            c[i] = _mm512_dpbusd_epi32(c[i], left, right);
        }
      }
    for (int i = 0; i < 16; ++i) _mm512_store_si512(to + 16 * i, _mm512_sub_epi32(c[i], added));
  }

  template <bool kSigned>
  static void share_right(const int8_t* const* a, int64_t count, int64_t stride, int64_t a_step, const int8_t* b,
                          int64_t b_step, int64_t steps, int32_t* to) {
    for (int64_t i = 0; i < count; ++i)
      add_bytes<kSigned ? Unsigned::kNone : Unsigned::kRight>(a[i], stride, a_step, b, b_step, steps, to + i * kResult);
  }

  static void share_left(const int8_t* a, int64_t a_step, const int8_t* b, int64_t b_step, int64_t steps, int32_t* to) {
    for (int64_t i = 0; i < kMostOperands; ++i)
      add_bytes<Unsigned::kLeft>(a, 64, a_step, b + i * kByteTile, b_step, steps, to + i * kResult);
  }

  static constexpr int64_t kMostSums = kLargestHeadDim / 16;

  static void load_sums(const float*, int64_t) {}
  static void store_sums(float*, int64_t) {}

  static void add_values(const uint16_t* values, int64_t count, const uint16_t* weights, float* sums) {
    for (int64_t tile = 0; tile < count; ++tile) add_to<16>(values + tile * kTile, weights, sums + tile * kResult);
  }

  // weights: [query, key]; values: tiles of [key, dim, 2].
  static void add_rows(const uint16_t* weights, int queries, const uint16_t* values, int64_t count, float* sums) {
    for (int64_t tile = 0; tile < count; ++tile, values += kTile, sums += kResult)
      for (int query = 0; query < queries; query += 4) add_to<4>(weights + query * 32, values, sums + query * 16);
  }
};

}  // namespace

void attend_avx512(const Attention& a, const Tile& tile, const Tile* next, void* scratch) {
  attend<VectorDot>(a, tile, next, scratch);
}

size_t attention_scratch_bytes(const Attention& a, int64_t lanes) { return Layout(a, lanes).bytes; }

}  // namespace pallas_kernels
