// Functions that are compiled once for each instruction set, in a namespace of its name, from sources named *_each.cpp.
#pragma once

#include "instruction_set.h"

#if defined(__x86_64__)

#define PALLAS_KERNELS_EACH(...) \
  namespace avx2 {               \
  __VA_ARGS__                    \
  }                              \
  namespace avx512f {            \
  __VA_ARGS__                    \
  }                              \
  namespace avx512_bf16 {        \
  __VA_ARGS__                    \
  }
#define PALLAS_KERNELS_CHOSEN(FUNCTION) \
  ::pallas_kernels::choose(avx2::FUNCTION, avx512f::FUNCTION, avx512_bf16::FUNCTION)
// The same where tiles have a function of their own.
#define PALLAS_KERNELS_CHOSEN_OR_TILES(FUNCTION, TILES) \
  (::pallas_kernels::instruction_set() == InstructionSet::kAmxBf16 ? TILES : PALLAS_KERNELS_CHOSEN(FUNCTION))

namespace pallas_kernels {

template <typename Function>
Function* choose(Function* avx2, Function* avx512f, Function* avx512_bf16) {
  switch (instruction_set()) {
    case InstructionSet::kAvx2: return avx2;
    case InstructionSet::kAvx512f: return avx512f;
    default: return avx512_bf16;
  }
}

}  // namespace pallas_kernels

#else

#define PALLAS_KERNELS_EACH(...) \
  namespace neon {               \
  __VA_ARGS__                    \
  }
#define PALLAS_KERNELS_CHOSEN(FUNCTION) neon::FUNCTION
#define PALLAS_KERNELS_CHOSEN_OR_TILES(FUNCTION, TILES) neon::FUNCTION

#endif
