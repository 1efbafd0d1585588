// Products with rows of w in blocks, which are decoded into the first-level cache while they are needed there.
#include "gguf_decoders.h"
#include "matmul_tiles.h"

namespace pallas_kernels {
namespace {

struct Decoded {
  using Numbers = BFloat16;
  static constexpr int64_t kMaxSteps = 16;  // two panels of it stay in the first-level cache

  explicit Decoded(const Matmul& m) : m(m), decode(decoder_of(m.kind)), block(block_of(m.kind)) {}

  int64_t steps_in_block() const { return block.elements > kInputsPerStep ? block.elements / kInputsPerStep : 1; }

  void fill(int64_t row, int64_t count, int64_t step, int64_t steps, char* to, Place next) const {
    const int64_t bytes = (next.step - step) * kInputsPerStep / block.elements * block.bytes;
    const int64_t ahead = next.row == kNoOutput ? 0 : (next.row - row) * m.row_bytes + bytes;
    const int64_t stored = count < kPanel ? count : kPanel;
    decode({m.w + row * m.row_bytes, m.row_bytes, stored}, step, steps, to, {64, kTileBytes}, ahead);
    for (int64_t r = stored; r < kPanel; ++r)
      for (int64_t s = 0; s < steps; ++s) _mm512_store_si512(to + r * 64 + s * kTileBytes, _mm512_setzero_si512());
  }

  Ahead ahead(Place, int64_t, int64_t, int64_t) const { return {nullptr, 0, 0, 0, 1, 0}; }  // decoding does it

  const Matmul& m;
  const Decode decode;
  const Block block;
};

}  // namespace

void quantized_matmul_amx(const Matmul& m, const void* packed, int64_t first_output, int64_t last_output,
                          int64_t first_block, int64_t last_block, int64_t next_output) {
  const FullTiles tiles;
  reuse_all(Decoded(m), m, static_cast<const char*>(packed), Outputs{first_output, last_output, next_output},
            Span{first_block, last_block});
}

}  // namespace pallas_kernels
