// Asking the memory for lines that will be written to. Writes wait for theirs one after the other, and those of a token's
// keys and values lie far apart; asked for all at once, they come side by side.
#pragma once

#include <cstdint>

namespace pallas_kernels {

inline void ask_to_write(const void* p, int64_t bytes) {
  const char* const first = static_cast<const char*>(p);
  for (int64_t i = 0; i < bytes; i += 64) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(first[i]));  // GCC would want a target for it
#else
    __builtin_prefetch(first + i, 1);
#endif
  }
}

}  // namespace pallas_kernels
