// What Python reads of the library: its targets and the instruction set in use.
#include "instruction_set.h"
#include "targets.h"

namespace pallas_kernels {

static const Target* first_target = nullptr;

Target::Target(const char* name, XLA_FFI_Handler* handler) : name(name), handler(handler), next(first_target) {
  first_target = this;
}

}  // namespace pallas_kernels

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const pallas_kernels::Target* pallas_kernels_cpu_targets() { return pallas_kernels::first_target; }

EXPORT bool pallas_kernels_cpu_has_instruction_set(int set) {
  return pallas_kernels::has_instruction_set(static_cast<pallas_kernels::InstructionSet>(set));
}

EXPORT int pallas_kernels_cpu_instruction_set() { return static_cast<int>(pallas_kernels::instruction_set()); }

// Kernels that start from now on go by it; the caller has checked that the processor has it.
EXPORT void pallas_kernels_cpu_use_instruction_set(int set) {
  pallas_kernels::use_instruction_set(static_cast<pallas_kernels::InstructionSet>(set));
}
