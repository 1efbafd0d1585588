"""Compiling for a described GPU, and finding the kernels in what comes out."""

from __future__ import annotations

import importlib.util
import os
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax

from pallas_kernels.aot.gpus import lowering_for, mesh_of, replicated
from pallas_kernels.aot.resources import Kernel, assemble
from pallas_kernels.aot.toolkit import cuda_dir, find_cuda_dir

_NEEDED = ("jax_cuda13_plugin", "jax_triton", "triton")
_dumps: list[tempfile.TemporaryDirectory] = []


@dataclass(frozen=True)
class Case:
    """Something to compile: a function (or what ``jax.jit`` made of one) and its arguments, arrays or their shapes."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Compiled:
    """A program for a GPU. kernels: those written by hand, Triton's and Mosaic's; XLA's own are in ``executable``."""

    executable: jax.stages.Compiled
    kernels: list[Kernel]


def unavailable() -> str | None:
    """Why nothing can be compiled here, or ``None``."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if find_cuda_dir() is None:
        missing.append("nvidia-cuda-nvcc")
    return f"not installed: {', '.join(missing)} (the aot extra)" if missing else None


def prepare() -> None:
    """Set this process up for compiling, before anything runs in JAX; it then has no CUDA device and no CPU speed.

    Raises RuntimeError where packages are missing or JAX has begun to run.
    """
    reason = unavailable()
    if reason is not None:
        raise RuntimeError(reason)
    if _dumps:
        return
    from jax._src import xla_bridge

    if xla_bridge.backends_are_initialized():
        raise RuntimeError("JAX has started in this process already: compile for GPUs in a process of its own")
    _dumps.append(tempfile.TemporaryDirectory(prefix="pallas-kernels-aot-"))
    os.environ |= {
        "CUDA_VISIBLE_DEVICES": "-1",
        "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
        "PATH": f"{cuda_dir() / 'bin'}:{os.environ['PATH']}",
        "TRITON_PTXAS_PATH": str(cuda_dir() / "bin" / "ptxas"),
        "MOSAIC_GPU_DUMP_TO": _dumps[0].name,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0 "
                     f"--xla_gpu_cuda_data_dir={cuda_dir()}",
    }
    jax.config.update("jax_platforms", "cuda,cpu")
    _fit_jax_triton()


def compile_for(gpu: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Compiled:
    """Compile ``function(*arguments, **options)`` for one GPU by its name in ``GPUS``.

    Arguments that are arrays or ShapeDtypeStructs without a sharding lie whole on that GPU. Those that have a sharding
    over a `mesh_of` the GPU keep it, and the program is compiled for that mesh. (Mosaic GPU compiles equal kernels
    once in a process, for the first GPU that it meets: a second time they are missing from ``kernels``.)
    """
    prepare()
    leaves = jax.tree.leaves(arguments)
    placed = any(isinstance(getattr(leaf, "sharding", None), jax.sharding.NamedSharding) for leaf in leaves)
    if not placed:
        whole = replicated(mesh_of(gpu))
        arguments = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=whole), arguments)
    jitted = function if hasattr(function, "lower") else jax.jit(function)
    for path in _dumped():
        path.unlink()
    with nullcontext() if placed else lowering_for(gpu):
        lowered = jitted.lower(*arguments, **options)
        executable = lowered.compile()
    kernels = [kernel for ptx, shared in _triton_kernels(lowered) for kernel in assemble(ptx, shared)]
    for path in _dumped():
        kernels += assemble(path.read_text())
    return Compiled(executable, kernels)


def _dumped() -> list[Path]:
    """The PTX that Mosaic GPU has written."""
    return sorted(Path(_dumps[0].name).rglob("*.ptx"))


def _triton_kernels(lowered: jax.stages.Lowered) -> Iterator[tuple[str, int]]:
    """PTX and bytes of shared memory of the Triton kernels of a program, each once."""
    from jax._src.lib.mlir import ir

    seen: set[tuple[str, int]] = set()
    calls: list[bytes] = []

    def visit(operation: ir.Operation) -> ir.WalkResult:
        if operation.name == "stablehlo.custom_call" and "triton_kernel_call" in str(
                operation.attributes["call_target_name"]):
            config = ir.DictAttr(operation.attributes["mhlo.backend_config"])
            calls.append(ir.StringAttr(config["opaque"]).value_bytes)
        return ir.WalkResult.ADVANCE

    module = lowered.compiler_ir()
    if module is None:
        raise RuntimeError("the program was lowered to no module")
    module.operation.walk(visit)
    for call in calls:
        for found in _find_kernels(zlib.decompress(call)):
            if found not in seen:
                seen.add(found)
                yield found


def _find_kernels(message: bytes) -> Iterator[tuple[str, int]]:
    """PTX and shared memory in a serialized call, whose messages hold both (jaxlib/gpu/triton.proto)."""
    fields = list(_fields(message))
    texts = [value for _, value in fields if isinstance(value, bytes) and b"\n.target sm_" in value[:4000]]
    if any(text.lstrip(b"/ \n").startswith((b"Generated by LLVM", b".version")) for text in texts):
        numbers = {number: value for number, value in fields if isinstance(value, int)}
        yield texts[0].decode(), numbers.get(_SHARED_BYTES, 0)
        return
    for text in texts:
        yield from _find_kernels(text)


_SHARED_BYTES = 3


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and values of the fields of a protocol buffer (protobuf.dev/programming-guides/encoding)."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            yield key >> 3, varint()
        elif kind == 2:
            size = varint()
            yield key >> 3, message[at : at + size]
            at += size
        else:
            at += 8 if kind == 1 else 4


def _fit_jax_triton() -> None:
    """jax-triton 0.4.1 was made for JAX 0.11; 0.12 calls the rule of dead code with one argument more."""
    from pallas_kernels.triton_launch import fit_jax_triton

    fit_jax_triton()
