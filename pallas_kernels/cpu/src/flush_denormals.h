// Included by sources that are compiled for one instruction set, and by nothing else.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pallas_kernels {
namespace {

// Denormals are zero while it lives, as they are in the tile units and in XLA's threads.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(0x9fc0); }
  ~FlushDenormals() { _mm_setcsr(static_cast<unsigned>(saved_)); }
#else
  FlushDenormals() {
    constexpr uint64_t kFlushToZero = 1 << 24;
    __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
    __asm__ volatile("msr fpcr, %0" : : "r"(saved_ | kFlushToZero));
  }
  ~FlushDenormals() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }
#endif

 private:
  uint64_t saved_;
};

}  // namespace
}  // namespace pallas_kernels
