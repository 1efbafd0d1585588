// Decoding by 16 numbers at a time. A product and a sum are rounded one after the other, as in the formats' reference.
#include <immintrin.h>

#include "gguf_rows.h"

namespace pallas_kernels {
namespace {

inline __m128i low(__m128i packed) { return _mm_and_si128(packed, _mm_set1_epi8(15)); }

inline __m128i high(__m128i packed) { return low(_mm_srli_epi16(packed, 4)); }

inline __m512 from_unsigned(__m128i b) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(b)); }

inline __m512 from_signed(__m128i b) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b)); }

// Where the next 16 numbers go.
struct Float32 {
  float* p;
  void put(__m512 values) { _mm512_storeu_ps(p, values), p += 16; }
};

void q4_0(const uint8_t* raw, int64_t blocks, Float32 out) {
  const __m128i eight = _mm_set1_epi8(8);
  for (int64_t b = 0; b < blocks; ++b, raw += 18) {
    const __m512 scale = _mm512_set1_ps(half_at(raw));
    const __m128i packed = load_16(raw + 2);
    out.put(_mm512_mul_ps(from_signed(_mm_sub_epi8(low(packed), eight)), scale));
    out.put(_mm512_mul_ps(from_signed(_mm_sub_epi8(high(packed), eight)), scale));
  }
}

void q4_1(const uint8_t* raw, int64_t blocks, Float32 out) {
  for (int64_t b = 0; b < blocks; ++b, raw += 20) {
    const __m512 scale = _mm512_set1_ps(half_at(raw)), minimum = _mm512_set1_ps(half_at(raw + 2));
    const __m128i packed = load_16(raw + 4);
    out.put(_mm512_add_ps(_mm512_mul_ps(from_unsigned(low(packed)), scale), minimum));
    out.put(_mm512_add_ps(_mm512_mul_ps(from_unsigned(high(packed)), scale), minimum));
  }
}

void q8_0(const uint8_t* raw, int64_t blocks, Float32 out) {
  for (int64_t b = 0; b < blocks; ++b, raw += 34) {
    const __m512 scale = _mm512_set1_ps(half_at(raw));
    out.put(_mm512_mul_ps(from_signed(load_16(raw + 2)), scale));
    out.put(_mm512_mul_ps(from_signed(load_16(raw + 18)), scale));
  }
}

void q4_k(const uint8_t* raw, int64_t blocks, Float32 out) {
  for (int64_t b = 0; b < blocks; ++b, raw += 144) {
    const float scale = half_at(raw), minimum = half_at(raw + 2);
    const uint8_t* packed = raw + 4;  // the 6-bit factors of eight groups
    for (int g = 0; g < 8; ++g) {
      const int s = g < 4 ? packed[g] & 63 : (packed[g + 4] & 15) | ((packed[g - 4] >> 2) & 48);
      const int m = g < 4 ? packed[g + 4] & 63 : (packed[g + 4] >> 4) | ((packed[g] >> 2) & 48);
      const __m512 by = _mm512_set1_ps(static_cast<float>(s) * scale);
      const __m512 less = _mm512_set1_ps(static_cast<float>(m) * minimum);
      const uint8_t* values = raw + 16 + 32 * (g / 2);  // two groups share their bytes
      for (int part = 0; part < 2; ++part) {
        const __m128i sixteen = load_16(values + 16 * part);
        out.put(_mm512_sub_ps(_mm512_mul_ps(from_unsigned(g % 2 ? high(sixteen) : low(sixteen)), by), less));
      }
    }
  }
}

bool to_float32(GGUFKind kind, const uint8_t* raw, int64_t blocks, Float32 out) {
  switch (kind) {
    case GGUFKind::kQ4_0: return q4_0(raw, blocks, out), true;
    case GGUFKind::kQ4_1: return q4_1(raw, blocks, out), true;
    case GGUFKind::kQ8_0: return q8_0(raw, blocks, out), true;
    case GGUFKind::kQ4_K: return q4_k(raw, blocks, out), true;
    default: return false;
  }
}

}  // namespace

bool decode_gguf_avx512(int kind, const uint8_t* raw, int64_t blocks, void* out, bool bfloat16) {
  const GGUFKind known = static_cast<GGUFKind>(kind);
  if (!bfloat16) return to_float32(known, raw, blocks, Float32{static_cast<float*>(out)});
  const Decode decode = decoder_of(known);
  if (decode != nullptr)
    decode({raw, 0, 1}, 0, blocks * block_of(known).elements / 32, static_cast<char*>(out), {0, 64}, 0);
  return decode != nullptr;
}

}  // namespace pallas_kernels
