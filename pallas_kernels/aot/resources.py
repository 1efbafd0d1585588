"""What NVIDIA's assembler says of a kernel: registers, spills, shared memory."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pallas_kernels.aot.toolkit import cuda_dir


@dataclass(frozen=True)
class Kernel:
    """A kernel in machine code.

    ptx: what it was assembled from. target: the architecture, such as "sm_90a".
    registers: per thread. stack_bytes, spill_bytes (stores and loads): per thread.
    shared_bytes: per thread block; static, and what it asks for at its launch where that is known.
    threads: per thread block, where the PTX says it.
    """

    name: str
    ptx: str
    target: str
    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    threads: int | None

    def count(self, instruction: str) -> int:
        """How many lines of the PTX hold an instruction, such as "wgmma.mma_async" or "cp.async.commit_group"."""
        return sum(instruction in line for line in self.ptx.splitlines())


def assemble(ptx: str, dynamic_shared_bytes: int = 0) -> list[Kernel]:
    """Assemble PTX with ``ptxas``: its entry functions, in order.

    Raises RuntimeError with the assembler's words where it refuses.
    """
    target = re.search(r"^\.target\s+(\w+)", ptx, re.M)
    if target is None:
        raise ValueError("the text has no .target line: it is no PTX")
    report = _ptxas(ptx, target[1])
    kernels = []
    for part in re.split(r"Compiling entry function ", report)[1:]:
        name = part[1 : part.index("'", 1)]
        frame = re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part)
        registers = re.search(r"Used (\d+) registers", part)
        if frame is None or registers is None:
            raise RuntimeError(f"ptxas reports no registers for {name}: {part[:300]}")
        static = re.search(r"(\d+) bytes smem", part)
        threads = re.search(rf"{re.escape(name)}\(.*?^\.(?:reqntid|maxntid) (\d+)", ptx, re.M | re.S)
        kernels.append(Kernel(
            name, ptx, target[1], int(registers[1]), int(frame[1]), int(frame[2]) + int(frame[3]),
            int(static[1] if static else 0) + dynamic_shared_bytes, int(threads[1]) if threads else None))
    return kernels


@functools.cache
def _ptxas(ptx: str, target: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        run = subprocess.run(
            [cuda_dir() / "bin" / "ptxas", "-v", f"--gpu-name={target}", source, "-o", Path(folder) / "kernel.cubin"],
            capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"ptxas refuses a kernel for {target}: {run.stderr[:2000]}")
    return run.stdout + run.stderr
