"""Compile kernels and programs for NVIDIA GPUs on a machine that has none, down to machine code.

XLA, Mosaic GPU and Triton compile for a described GPU; NVIDIA's own assembler says what each kernel takes::

    from pallas_kernels import aot

    aot.prepare()                                             # first thing in a process of its own
    compiled = aot.compile_for("h200", function, *shapes)     # arrays or jax.ShapeDtypeStruct
    for kernel in compiled.kernels:
        print(kernel.name, kernel.registers, kernel.spill_bytes, kernel.shared_bytes, "wgmma" in kernel.ptx)

``python -m pallas_kernels.aot MODULE:FUNCTION`` compiles many cases in one process and prints a line of JSON for each.
The packages that it takes are the ``aot`` extra. Nothing here can be timed; layouts, registers, shared memory, spills
and collectives are the real ones.
"""

from pallas_kernels.aot.compiler import Case, Compiled, compile_for, prepare, unavailable
from pallas_kernels.aot.gpus import GPU, GPUS, mesh_of
from pallas_kernels.aot.resources import Kernel, assemble

__all__ = ["GPU", "GPUS", "Case", "Compiled", "Kernel", "assemble", "compile_for", "mesh_of", "prepare", "unavailable"]
