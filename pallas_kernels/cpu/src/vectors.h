// The vectors that kernels are written in: AVX-512's, by the names of its intrinsics, on every processor. Where it has
// none, or none of bfloat16, the names used here stand, within this namespace, for what computes the same bits.
//
// Included by sources that are compiled for one instruction set, and by nothing else.
#pragma once

#if defined(__AVX512BF16__)
#include <immintrin.h>
#elif defined(__AVX512F__)
#include "vectors_bfloat16.h"
#else
#include "vectors_emulated.h"
#endif
