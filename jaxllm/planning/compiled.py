"""``CompiledStep``: what XLA makes of the engine's own programs for a mesh of GPUs that is not here.

The compilers are those of the ``aot`` extra (``pallas_kernels.aot``), in a process of their own
(``jaxllm.planning.aot_step``).
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

from jaxllm.config import EngineConfig
from jaxllm.errors import EngineError, ParameterError
from jaxllm.kv_cache.spec import KVSpec
from jaxllm.models.model import Model
from jaxllm.planning.mesh import MeshSizes

TARGETS = {"a100-40": "a100", "a100-80": "a100", "h100": "h100", "h200": "h200", "b200": "b200"}
"""What the compilers call the GPUs that they know."""
_KINDS = ("all-reduce", "all-gather", "all-to-all", "ragged-all-to-all",
          "reduce-scatter", "collective-permute", "collective-broadcast")
_OPERATION = re.compile(rf" = (\(?.*?) ({'|'.join(_KINDS)})(-start)?\(")
_SHAPE = re.compile(r"([a-z]+\d+)\[([\d,]*)\]")
_SHAPE_TEXT = re.compile(r"[a-z]+\d+\[[\d,]*\]")


@dataclasses.dataclass(frozen=True)
class CompiledCollective:
    """Operations of one kind in a program: how many, each with an operand of so many bytes on one GPU; of
    "ragged-all-to-all" with a buffer of so many, for what comes."""

    kind: str
    count: int
    bytes_each: int


@dataclasses.dataclass(frozen=True)
class CompiledProgram:
    """A program of a step. stage: of the pipeline. argument_bytes, temporary_bytes: on one GPU, by the compiler's own
    analysis of memory. custom_kernels: whether kernels of ``pallas_kernels`` are in it."""

    name: str
    stage: int
    argument_bytes: int
    temporary_bytes: int
    custom_kernels: bool
    collectives: tuple[CompiledCollective, ...]


@dataclasses.dataclass(frozen=True)
class CompiledStep:
    """The programs of a decoding step, greedily sampled, and the layers' of the largest step.

    resident_bytes: of weights and cache on one GPU of each stage. temporary_bytes: the most that a program takes.
    """

    decode: tuple[CompiledProgram, ...]
    prefill: tuple[CompiledProgram, ...]
    resident_bytes: tuple[int, ...]

    @property
    def temporary_bytes(self) -> int:
        """As above."""
        return max(program.temporary_bytes for program in (*self.decode, *self.prefill))

    def collectives(self, stage: int) -> Counter[tuple[str, int]]:
        """Of a decoding step: how many by kind and bytes of the operand."""
        found: Counter[tuple[str, int]] = Counter()
        for program in self.decode:
            if program.stage == stage:
                for each in program.collectives:
                    found[each.kind, each.bytes_each] += each.count
        return found


@dataclasses.dataclass(frozen=True)
class StepToCompile:
    """kv: of one GPU, all layers. decode_tokens: of the decoding step."""

    gpu: str
    model: Model
    kv: KVSpec
    mesh: MeshSizes
    config: EngineConfig
    decode_tokens: int


def check_compilable(gpu: str, mesh: MeshSizes) -> None:
    """``ParameterError`` where nothing can be compiled, with the reason."""
    from pallas_kernels import aot

    missing = aot.unavailable()
    if missing is not None:
        raise ParameterError("compile", True, f"False here: {missing}")
    if gpu not in TARGETS:
        raise ParameterError("compile", True, f"False for {gpu}: the compilers know {', '.join(TARGETS)}")


def compile_step(step: StepToCompile) -> CompiledStep:
    """Compile in a process of its own; ``EngineError`` with the compiler's message where that fails."""
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    run = subprocess.run([sys.executable, "-m", "jaxllm.planning.aot_step"], input=pickle.dumps(step),
                         capture_output=True, check=False, env=environment)
    if run.returncode:
        raise EngineError("the step could not be compiled: " + run.stderr.decode(errors="replace").strip()[-2000:])
    found: CompiledStep = pickle.loads(run.stdout)
    return found


def collectives_in(text: str, gpus: int) -> Iterator[CompiledCollective]:
    """The collectives of a program's text (HLO), equal ones counted. gpus: that take part in each."""
    found: Counter[tuple[str, int]] = Counter()
    for line in text.splitlines():
        match = _OPERATION.search(line)
        if match is None:
            continue
        shapes, kind, started = match.groups()
        if started and shapes.startswith("(("):
            operands = _nbytes(shapes[1:shapes.index(")") + 1])
            if kind == "ragged-all-to-all":  # of what is sent, and of where to
                operands = _nbytes(_SHAPE_TEXT.findall(shapes)[1])
        else:
            operands = _nbytes(shapes) // (gpus if kind == "all-gather" else 1)
        found[kind, operands] += 1
    for (kind, nbytes), count in found.items():
        yield CompiledCollective(kind, count, nbytes)


def _nbytes(shapes: str) -> int:
    """Bytes of all arrays in a type such as ``(bf16[64,8192]{1,0}, s32[8]{0})``."""
    total = 0
    for name, sizes in _SHAPE.findall(shapes):
        size = -(-int(re.sub(r"\D", "", name)) // 8)
        for each in filter(None, sizes.split(",")):
            size *= int(each)
        total += size
    return total
