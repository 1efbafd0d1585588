// AMX tiles: eight per thread, of 16 rows of 64 bytes each. For sources named *_amx.cpp.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "transpose.h"

namespace pallas_kernels {
namespace {

constexpr int64_t kTileRows = 16, kTileBytes = 1024, kTileBf16 = 32;

// All tiles at full size, for as long as it lives; a thread's tiles are given back after that, as a context switch
// would save them.
class FullTiles {
 public:
  FullTiles() {
    struct alignas(64) {
      uint8_t palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } config;
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
  }
  ~FullTiles() { __asm__ volatile("tilerelease"); }
  FullTiles(const FullTiles&) = delete;
  FullTiles& operator=(const FullTiles&) = delete;
};

// The compiler's intrinsics do not say that they read memory.
template <int kTile>
inline __attribute__((always_inline)) void tile_load(const void* from, int64_t stride_bytes) {
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride_bytes), "i"(kTile) : "memory");
}

template <int kTile>
inline __attribute__((always_inline)) void tile_store(void* to, int64_t stride_bytes) {
  __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride_bytes), "i"(kTile) : "memory");
}

template <int kTile>
inline __attribute__((always_inline)) void tile_zero() {
  __asm__ volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// sums[r, c] += products of row r of A with column c of B, whose rows hold pairs: B[k, c] = (b[2k, c], b[2k + 1, c]).
template <int kSums, int kA, int kB>
inline __attribute__((always_inline)) void tile_dot_bf16() {
  __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}

// The same of bytes, four at a time, in 32-bit integers: signed ones, or those of one operand unsigned.
template <int kSums, int kA, int kB>
inline __attribute__((always_inline)) void tile_dot_int8() {
  __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}

template <int kSums, int kA, int kB>
inline __attribute__((always_inline)) void tile_dot_uint8_int8() {
  __asm__ volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}

template <int kSums, int kA, int kB>
inline __attribute__((always_inline)) void tile_dot_int8_uint8() {
  __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}

}  // namespace
}  // namespace pallas_kernels
