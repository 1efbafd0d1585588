// Products of pairs of bfloat16, as VDPBF16PS computes them: those of the odd elements first, each sum rounded once.
#pragma once

#include "vectors_emulated.h"

namespace pallas_kernels {
namespace {

// Pairs of bfloat16, one in each lane, as float32.
struct Pair {
  Floats odd, even;
};

inline Pair expand(Ints x) { return {(Floats)((Unsigned32)x & 0xffff0000), (Floats)((Unsigned32)x << 16)}; }

inline Pair load_pair(const uint16_t* p) {
  Ints x;
  std::memcpy(&x, p, sizeof x);
  return expand(x);
}

// The same pair in every lane.
inline Pair broadcast_pair(const uint16_t* p) {
  uint32_t pair;
  std::memcpy(&pair, p, sizeof pair);
  return expand((Ints)(pair - Unsigned32{}));
}

inline Floats load_floats(const float* p) {
  Floats x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

inline void store_floats(float* p, Floats x) { std::memcpy(p, &x, sizeof x); }

inline Floats add_products(const Pair& a, const Pair& b, Floats sum) {
  return fused(a.even, b.even, fused(a.odd, b.odd, sum));
}

}  // namespace
}  // namespace pallas_kernels
