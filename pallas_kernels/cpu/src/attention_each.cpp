// Attention without tile registers.
#include "attention_tile.h"

#if defined(__AVX512F__)
#include "attention_vector_dot.h"
#else
#include "attention_fused_dot.h"
#endif

namespace pallas_kernels {

void INSTRUCTION_SET::attend(const Attention& a, const Tile& tile, const Tile* next, void* scratch) {
  pallas_kernels::attend<VectorDot>(a, tile, next, scratch);
}

}  // namespace pallas_kernels
