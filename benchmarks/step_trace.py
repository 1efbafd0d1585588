"""Profiles of steps: what XLA's operations are, by the program's text; how long they took, by the profiler's trace.

An operation's name in the text has a path of scopes, such as ``mlp/matmul.cpu/ffi_call``: what the model's parts, and
the kernels' registry (operation and implementation), called themselves.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import jax

CONTAINERS = {"while", "call", "conditional"}
"""Operations whose time is that of others inside them."""

_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$")
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.-]+) \(.*\{$")
_KERNEL = re.compile(r"(\w+)\.(\w+)")
_PARTS = {"norm": "norms", "rope": "rotary embedding", "embedding": "token embedding", "metadata": "attention metadata"}
_KERNELS = {"paged_attention": "attention", "kv_write": "KV write", "rms_norm": "norms", "sample_rows": "sampler",
            "token_logprobs": "sampler", "log_normalizer": "sampler"}


@dataclasses.dataclass(frozen=True)
class Operation:
    """What an instruction is for, and the kernel implementation it belongs to (empty if to none)."""

    what: str
    implementation: str = ""
    is_container: bool = False


@dataclasses.dataclass(frozen=True)
class Event:
    """One run of an operation, in nanoseconds. run: of the program."""

    program: str
    run: int
    name: str
    start: float
    end: float


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a program's text. shape: of its first result. called: the computation that a fusion consists of."""

    opcode: str
    shape: tuple[int, ...]
    operands: tuple[str, ...]
    path: tuple[str, ...]
    called: str


def read_program(text: str) -> dict[str, Operation]:
    """The operations of a compiled program (``jax.stages.Compiled.as_text``), by name."""
    program = (re.search(r"HloModule jit_jaxllm_(\w+)", text) or [text, "program"])[1]
    instructions: dict[str, Instruction] = {}
    products: dict[str, str] = {}  # by computation: its dot
    computation = ""
    for line in text.splitlines():
        if found := _COMPUTATION.match(line):
            computation = found[1]
        elif found := _INSTRUCTION.match(line):
            name, shape, opcode, rest = found.groups()
            path = re.search(r'op_name="([^"]*)"', rest)
            called = re.search(r"calls=%?([\w.-]+)", rest)
            instructions[name] = Instruction(
                opcode, _sizes(shape), tuple(re.findall(r"%([\w.-]+)", rest.split(")")[0])),
                tuple(path[1].split("/")) if path else (), called[1] if called else "")
            if opcode == "dot":
                products[computation] = name
    return {name: _operation(name, instructions, products, program) for name in instructions}


def _operation(name: str, instructions: Mapping[str, Instruction], products: Mapping[str, str], program: str
               ) -> Operation:
    instruction = instructions[name]
    is_container = instruction.opcode in CONTAINERS
    kernels = [found.groups() for part in instruction.path if (found := _KERNEL.fullmatch(part))]
    if kernels:
        kernel, implementation = kernels[-1]
        what = _KERNELS.get(kernel, kernel)
        if kernel == "matmul":
            what = "head" if "head" in instruction.path else "matmul"
            product = instructions[products.get(instruction.called, name)]
            sizes = [instructions[operand].shape for operand in product.operands if operand in instructions]
            if product.opcode in ("dot", "custom-call") and len(sizes) >= 2:
                what += " " + " by ".join("x".join(map(str, shape)) for shape in sizes[:2])
            else:
                what = "casts around matmuls"
        return Operation(what, implementation, is_container)
    for part, what in _PARTS.items():
        if part in instruction.path:
            return Operation(what, "", is_container)
    if "mlp" in instruction.path:
        return Operation("activation and residual of MLPs", "", is_container)
    if "attention" in instruction.path:
        return Operation("residual and copies of attention", "", is_container)
    return Operation("sampler" if program == "sample" else f"rest of {program}", "", is_container)


def _sizes(shape: str) -> tuple[int, ...]:
    found = re.search(r"\[([\d,]*)\]", shape)
    return tuple(int(size) for size in found[1].split(",") if size) if found else ()


def record(function: Callable[[], None]) -> list[Event]:
    """The operations that run on the device while ``function`` does."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # it slows the host down
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, profiler_options=options):
            function()
        return [event for path in Path(folder).rglob("*.xplane.pb") for event in _events(path)]


def _events(path: Path) -> Iterable[Event]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of JAX's own types
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                for event in line.events:
                    stats = dict(event.stats)
                    if "hlo_op" in stats:
                        yield Event(str(stats["hlo_module"]), int(stats["run_id"]), str(stats["hlo_op"]),
                                    event.start_ns, event.start_ns + event.duration_ns)


def cut_into_steps(events: Sequence[Event], first_program: str) -> list[tuple[float, float, list[Event]]]:
    """(start, end, its operations) of each step but the last: from one run of the first program to the next one's."""
    starts: dict[int, float] = {}
    for event in events:
        if event.program == first_program:
            starts[event.run] = min(event.start, starts.get(event.run, event.start))
    borders = sorted(starts.values())
    steps = [(start, end, list[Event]()) for start, end in itertools.pairwise(borders)]
    ordered = sorted(events, key=lambda event: event.start)
    position = 0
    for start, end, inside in steps:
        while position < len(ordered) and ordered[position].start < end:
            if ordered[position].start >= start:
                inside.append(ordered[position])
            position += 1
    return steps


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of their union."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
