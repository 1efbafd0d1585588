// Attention over a cache of bytes by AVX-512's products of bytes. Other instruction sets leave it to XLA.
#include "attention.h"

#if defined(__AVX512BF16__)
#include <string.h>

#include "attention_lanes_bytes.h"
#include "attention_rows_bytes.h"
#include "attention_tile.h"

namespace pallas_kernels {
namespace {

struct VectorDot {
  // Which operand is unsigned, as the instruction wants one to be. Signed left operands beside signed right ones are
  // taken 128 higher; what this adds is subtracted. For the operands see attention_int8_amx.cpp.
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
};

}  // namespace

void INSTRUCTION_SET::attend_int8(const Attention& a, const Tile& tile, const Tile* next, void* scratch) {
  attend_tile<ByteRows<VectorDot>, ByteLanes<VectorDot>>(a, tile, next, scratch);
}

}  // namespace pallas_kernels
#endif
