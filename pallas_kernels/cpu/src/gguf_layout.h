// What the decoders of quantized weights have in common.
#pragma once

#include <cstdint>

#include "gguf.h"

namespace pallas_kernels {
namespace {

// Where numbers go: each row's row_bytes after those of the row before, and each 32 of them step_bytes after the last 32.
struct Layout {
  int64_t row_bytes, step_bytes;
};

// Up to 16 rows of w, row_bytes apart.
struct StoredRows {
  const uint8_t* first;
  int64_t row_bytes, count;
};

// Writes numbers 32 * first to 32 * (first + steps) of some rows; asks the memory for the bytes that lie `ahead` bytes
// after those it reads. first and steps are multiples of what a block holds.
using Decode = void (*)(StoredRows rows, int64_t first, int64_t steps, char* to, Layout layout, int64_t ahead);

}  // namespace
}  // namespace pallas_kernels
