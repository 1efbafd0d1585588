// Products by AMX.
#include "matmul_products.h"

namespace pallas_kernels {

void multiply_amx(const Matmul& m, const void* packed, int64_t first_output, int64_t last_output, int64_t first_block,
                  int64_t last_block, int64_t next_output) {
  const FullTiles tiles;
  multiply_any(m, packed, {first_output, last_output, next_output}, {first_block, last_block});
}

}  // namespace pallas_kernels
