// Included by sources named *_avx512.cpp and *_amx.cpp, and by nothing else.
#pragma once

#include <immintrin.h>

namespace pallas_kernels {
namespace {

// Denormals are zero while it lives, as they are in the tile units and in XLA's threads.
class FlushDenormals {
 public:
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(0x9fc0); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
};

}  // namespace
}  // namespace pallas_kernels
