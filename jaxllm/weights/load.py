"""``load_params``: tensors of a checkpoint to JAX arrays, one at a time, in their final dtype and sharding."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from jaxllm.errors import CheckpointError, ParameterError
from jaxllm.weights.convert import cast
from jaxllm.weights.files import empty_aligned
from jaxllm.weights.int8 import quantize_int8
from jaxllm.weights.source import ModelSource
from jaxllm.weights.spec import ParamSpec, Piece

WeightMap = Mapping[str, Sequence[str | Piece]]
"""For each parameter, the checkpoint tensors that it consists of, concatenated along axis 0."""

_TASK_SIZE = 1 << 18  # elements: some milliseconds of work, so that threads share a large tensor evenly
_MAX_THREADS = 8
_MAX_SHOWN = 30  # problems listed in an error


def load_params(
    source: ModelSource,
    specs: Mapping[str, ParamSpec],
    weight_map: WeightMap,
    *,
    dtype: Any = None,
    put: Callable[[str, Any], Any] | None = None,
    ignore: Iterable[str] = (),
    progress: Callable[[int, int], None] | None = None,
    threads: int | None = None,
) -> dict[str, Any]:
    """Load every parameter of ``specs``: an array, or the tree of arrays that ``ParamSpec.abstract`` describes.

    dtype: what floating-point parameters become; ``None`` means the dtype of each spec.
    put: gives a parameter to the devices, by its name and its arrays in host memory, one or a tree of them, which are
        its own from then on; ``None`` puts them on the default device.
    ignore: regular expressions, searched for in the names of checkpoint tensors that no parameter needs.
    progress: called after each parameter with the bytes loaded and the bytes in all.
    threads: that read and convert; ``None`` means one per processor that this process may use, at most 8.

    All names and shapes are checked before any data is read or memory taken; ``CheckpointError`` then lists everything
    that is missing, left over or of the wrong shape. One parameter at a time is read, straight into the buffer that
    becomes its array where the device is the CPU, so that the peak of host memory is the parameters and one of them.
    """
    import jax

    if threads is not None and threads < 1:
        raise ParameterError("threads", threads, "an integer >= 1, or None")
    if set(specs) != set(weight_map):
        raise ParameterError("weight_map", sorted(set(specs) ^ set(weight_map)), "an entry for each spec and no other")
    plan = {name: [piece if isinstance(piece, Piece) else Piece(piece) for piece in weight_map[name]] for name in specs}
    check_checkpoint(source, specs, plan, ignore)
    specs = {name: _with_dtype(spec, dtype) for name, spec in specs.items()}
    total, done = sum(spec.nbytes for spec in specs.values()), 0
    params = {}
    put = _put_on_default_device if put is None else put
    with ThreadPoolExecutor(threads or min(_MAX_THREADS, _processors()), "load_params") as pool:
        for name, spec in specs.items():
            read = _load_parts if spec.parts else _load_plain
            # And wait, so that transfers do not pile up on the host.
            params[name] = jax.block_until_ready(put(name, read(source, spec, plan[name], pool)))
            done += spec.nbytes
            if progress is not None:
                progress(done, total)
    return params


def check_checkpoint(
    source: ModelSource, specs: Mapping[str, ParamSpec], plan: Mapping[str, Sequence[Piece]], ignore: Iterable[str] = ()
) -> None:
    """Compare names and shapes with the checkpoint's headers; one ``CheckpointError`` lists all differences."""
    import jax

    pieces = [piece for name in specs for piece in plan[name]]
    needed = {piece.name for piece in pieces}
    patterns = [re.compile(pattern) for pattern in ignore]
    problems = [f"missing: {name}" for name in sorted(needed - set(source.tensors))]
    extra = [name for name in sorted(set(source.tensors) - needed) if not any(p.search(name) for p in patterns)]
    problems += [f"unexpected: {name}, of shape {list(source.tensors[name].shape)}" for name in extra]
    for name, spec in specs.items():
        if any(piece.name not in source.tensors for piece in plan[name]):
            continue
        shapes = [_piece_shape(source, piece) for piece in plan[name]]
        if jax.dtypes.issubdtype(spec.dtype, np.floating):
            integers = [piece.name for piece in plan[name]
                        if not jax.dtypes.issubdtype(source.dtype(piece.name), np.floating)]
            problems += [f"wrong type: {piece} is {source.tensors[piece].dtype}, not numbers with a floating point"
                         for piece in integers]
        joined = shapes[0] if len(shapes) == 1 else _concatenated(shapes)
        if joined != spec.shape:
            found = ", ".join(f"{piece.name} {list(shape)}" for piece, shape in zip(plan[name], shapes, strict=True))
            problems.append(f"wrong shape: {name} should be {list(spec.shape)}, the checkpoint has {found}")
    if problems:
        shown = problems[:_MAX_SHOWN] + ([f"and {len(problems) - _MAX_SHOWN} more"] if problems[_MAX_SHOWN:] else [])
        raise CheckpointError(f"{source.path} does not fit the model:\n  " + "\n  ".join(shown))


def _piece_shape(source: ModelSource, piece: Piece) -> tuple[int, ...]:
    shape = source.tensors[piece.name].shape
    if piece.transform is None:
        return shape
    return piece.transform(np.broadcast_to(np.zeros((), source.dtype(piece.name)), shape)).shape


def _concatenated(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    if not shapes or not all(shapes) or len({shape[1:] for shape in shapes}) > 1:
        return None
    return sum(shape[0] for shape in shapes), *shapes[0][1:]


def _with_dtype(spec: ParamSpec, dtype: Any) -> ParamSpec:
    from jax import dtypes

    if dtype is None or not dtypes.issubdtype(spec.dtype, np.floating):
        return spec
    if not dtypes.issubdtype(dtype, np.floating):
        raise ParameterError("dtype", dtype, "a floating-point dtype or None")
    return dataclasses.replace(spec, dtype=dtype)


def _fill(source: ModelSource, pieces: Sequence[Piece], buffer: np.ndarray, pool: ThreadPoolExecutor) -> None:
    """Read the pieces into ``buffer``, one after another along axis 0, in tasks of equal size."""
    tasks: list[tuple[str, Future[None]]] = []

    def start_task(piece: Piece, function: Callable[..., None], *arguments: Any) -> None:
        tasks.append((piece.name, pool.submit(function, *arguments)))

    at = 0
    for piece in pieces:
        shape = _piece_shape(source, piece)
        end = at + shape[0] if shape else 0
        part = buffer[at:end] if shape else buffer
        at = end
        if piece.transform is not None:
            start_task(piece, _read_transformed, source, piece.name, piece.transform, part)
            continue
        rows = source.tensors[piece.name].rows
        if len(shape) < 2:
            start_task(piece, source.read_rows, piece.name, 0, rows, part)
            continue
        step = max(1, _TASK_SIZE // max(1, math.prod(shape[1:])))
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            start_task(piece, source.read_rows, piece.name, start, stop, part[start:stop])
    _finish(source, tasks)


def _load_plain(source: ModelSource, spec: ParamSpec, pieces: Sequence[Piece], pool: ThreadPoolExecutor) -> Any:
    buffer = empty_aligned(spec.shape, spec.dtype)
    _fill(source, pieces, buffer, pool)
    return buffer


def _load_parts(source: ModelSource, spec: ParamSpec, pieces: Sequence[Piece], pool: ThreadPoolExecutor) -> Any:
    """A matrix whose rows are kept in one or several ways, each the rows of some pieces."""
    from jaxllm.weights.rows import QuantizedRows, joined
    from pallas_kernels.quantized import FORMATS

    left = list(pieces)
    loaded: list[Any] = []
    for part in spec.parts:
        own: list[Piece] = []
        while sum(_piece_shape(source, piece)[0] for piece in own) < part.rows:
            own.append(left.pop(0))
        if part.kind is None:
            buffer = empty_aligned((part.rows, spec.shape[1]), spec.dtype)
            _fill(source, own, buffer, pool)
            loaded.append(buffer)
            continue
        layout = FORMATS[part.kind]
        blocks = empty_aligned((part.rows, layout.row_bytes(spec.shape[1])), np.dtype(np.uint8))
        scale = empty_aligned((part.rows,), np.dtype(np.float32)) if layout.scaled else None
        _fill_blocks(source, own, blocks, scale, pool)
        loaded.append(QuantizedRows(blocks, scale, part.kind))  # type: ignore[arg-type]
    return joined(loaded)


def _fill_blocks(source: ModelSource, pieces: Sequence[Piece], blocks: np.ndarray, scale: np.ndarray | None,
                 pool: ThreadPoolExecutor) -> None:
    """Read the pieces' rows into ``blocks`` as they are stored; given ``scale``, in int8."""

    def read(piece: Piece, start: int, stop: int, at: int) -> None:
        into = blocks[at : at + stop - start]
        if scale is None:
            source.read_stored(piece.name, start, stop, into)
            return
        factors = scale[at : at + stop - start]
        if piece.transform is None:
            source.read_int8(piece.name, start, stop, into, factors)
        else:
            quantize_int8(piece.transform(source.read(piece.name)).astype(np.float32), into, factors)

    tasks, at = [], 0
    for piece in pieces:
        rows, columns = _piece_shape(source, piece)
        step = rows if piece.transform is not None else max(1, _TASK_SIZE // max(1, columns))
        tasks += [(piece.name, pool.submit(read, piece, start, min(start + step, rows), at + start))
                  for start in range(0, rows, max(1, step))]
        at += rows
    _finish(source, tasks)


def _finish(source: ModelSource, tasks: Iterable[tuple[str, Future[None]]]) -> None:
    for name, task in tasks:
        try:
            task.result()
        except OverflowError as error:
            raise CheckpointError(f"{source.path}: cannot load {name!r}: {error}") from None


def _read_transformed(
    source: ModelSource, name: str, transform: Callable[[np.ndarray], np.ndarray], out: np.ndarray
) -> None:
    cast(transform(source.read(name)), out)


def _put_on_default_device(name: str, arrays: Any) -> Any:
    """Hand the buffers over to JAX (the CPU uses them in place)."""
    import jax

    return jax.tree.map(jax.device_put, arrays)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
