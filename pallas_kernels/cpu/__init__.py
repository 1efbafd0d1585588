"""Native kernels for CPUs: a library in C++ behind XLA's FFI, built with the package where a compiler is found."""

from pallas_kernels.cpu.library import instruction_set, unavailable, use_instruction_set

__all__ = ["instruction_set", "unavailable", "use_instruction_set"]
