"""Native kernels for CPUs: a library in C++ behind XLA's FFI, built with the package where a compiler is found."""

from pallas_kernels.cpu.library import (
    INSTRUCTION_SETS,
    instruction_set,
    instruction_sets,
    unavailable,
    use_instruction_set,
)

__all__ = ["INSTRUCTION_SETS", "instruction_set", "instruction_sets", "unavailable", "use_instruction_set"]
