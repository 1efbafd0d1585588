#include "gguf.h"

#include "instruction_set.h"

// For Python, which has checked the sizes. False where it is not known how.
extern "C" __attribute__((visibility("default"))) bool pallas_kernels_cpu_decode_gguf(int kind, const uint8_t* raw,
                                                                                      int64_t blocks, void* out,
                                                                                      bool bfloat16) {
  using namespace pallas_kernels;
  return instruction_set() != InstructionSet::kNone && PALLAS_KERNELS_CHOSEN(decode_gguf)(kind, raw, blocks, out, bfloat16);
}
