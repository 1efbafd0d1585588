// Asking the memory for what will be needed.
#pragma once

#include "vectors.h"

namespace pallas_kernels {
namespace {

// Into the second-level cache on processors with AMX, else into the first: what was found to be faster.
inline void ask(const void* p) {
#if defined(__AMX_TILE__)
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
#else
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
#endif
}

}  // namespace
}  // namespace pallas_kernels
