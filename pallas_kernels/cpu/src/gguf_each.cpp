// Decoding by 16 numbers at a time. A product and a sum are rounded one after the other, as in the formats' reference.
#include "gguf_decoders.h"

namespace pallas_kernels {
namespace {

// Where the next 16 numbers go.
struct Float32 {
  float* p;
  void put(__m512 values) { _mm512_storeu_ps(p, values), p += 16; }
};

void q4_0(const uint8_t* raw, int64_t blocks, Float32 out) {
  const __m512 eight = _mm512_set1_ps(8);
  for (int64_t b = 0; b < blocks; ++b, raw += 18) {
    const __m512 scale = _mm512_set1_ps(half_at(raw));
    const __m512i packed = bytes_at(raw + 2);
    out.put(_mm512_mul_ps(_mm512_sub_ps(low_nibbles(packed), eight), scale));
    out.put(_mm512_mul_ps(_mm512_sub_ps(high_nibbles(packed), eight), scale));
  }
}

void q4_1(const uint8_t* raw, int64_t blocks, Float32 out) {
  for (int64_t b = 0; b < blocks; ++b, raw += 20) {
    const __m512 scale = _mm512_set1_ps(half_at(raw)), minimum = _mm512_set1_ps(half_at(raw + 2));
    const __m512i packed = bytes_at(raw + 4);
    out.put(_mm512_add_ps(_mm512_mul_ps(low_nibbles(packed), scale), minimum));
    out.put(_mm512_add_ps(_mm512_mul_ps(high_nibbles(packed), scale), minimum));
  }
}

void q8_0(const uint8_t* raw, int64_t blocks, Float32 out) {
  for (int64_t b = 0; b < blocks; ++b, raw += 34) {
    const __m512 scale = _mm512_set1_ps(half_at(raw));
    out.put(_mm512_mul_ps(signed_bytes_at(raw + 2), scale));
    out.put(_mm512_mul_ps(signed_bytes_at(raw + 18), scale));
  }
}

void q4_k(const uint8_t* raw, int64_t blocks, Float32 out) {
  for (int64_t b = 0; b < blocks; ++b, raw += 144) {
    const float scale = half_at(raw), minimum = half_at(raw + 2);
    for (int g = 0; g < 8; ++g) {
      const SixBits factors = six_bits(raw + 4, g);
      const __m512 by = _mm512_set1_ps(static_cast<float>(factors.scale) * scale);
      const __m512 less = _mm512_set1_ps(static_cast<float>(factors.minimum) * minimum);
      const uint8_t* values = raw + 16 + 32 * (g / 2);  // two groups share their bytes
      for (int part = 0; part < 2; ++part) {
        const __m512i sixteen = bytes_at(values + 16 * part);
        out.put(_mm512_sub_ps(_mm512_mul_ps(g % 2 ? high_nibbles(sixteen) : low_nibbles(sixteen), by), less));
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

bool INSTRUCTION_SET::decode_gguf(int kind, const uint8_t* raw, int64_t blocks, void* out, bool bfloat16) {
  const GGUFKind known = static_cast<GGUFKind>(kind);
  if (!bfloat16) return to_float32(known, raw, blocks, Float32{static_cast<float*>(out)});
  const Decode decode = decoder_of(known);
  if (decode != nullptr)
    decode({raw, 0, 1}, 0, blocks * block_of(known).elements / 32, static_cast<char*>(out), {0, 64}, 0);
  return decode != nullptr;
}

}  // namespace pallas_kernels
