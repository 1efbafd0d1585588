// Which of the compiled-in instruction sets the kernels use.
#pragma once

namespace pallas_kernels {

// Those of x86 in ascending order: each includes the ones before it. The numbers are known to Python.
enum class InstructionSet { kNone = 0, kAvx2 = 1, kAvx512f = 2, kAvx512Bf16 = 3, kAmxBf16 = 4, kNeon = 5 };

// The best one that this processor and operating system offer. Asks Linux for the use of AMX tiles.
InstructionSet best_instruction_set();

// Whether this processor and operating system offer it.
bool has_instruction_set(InstructionSet set);

// The one in use: the best, unless another was chosen.
InstructionSet instruction_set();

void use_instruction_set(InstructionSet set);

}  // namespace pallas_kernels
