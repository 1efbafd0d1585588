// Attention without tile registers.
#include "attention_lanes_bfloat16.h"
#include "attention_rows_bfloat16.h"
#include "attention_tile.h"

#if defined(__AVX512F__)
#include "attention_vector_dot.h"
#else
#include "attention_fused_dot.h"
#endif

namespace pallas_kernels {

void INSTRUCTION_SET::attend(const Attention& a, const Tile& tile, const Tile* next, void* scratch) {
  attend_tile<BFloat16Rows<VectorDot>, BFloat16Lanes<VectorDot>>(a, tile, next, scratch);
}

}  // namespace pallas_kernels
