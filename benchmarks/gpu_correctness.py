"""Are the GPU kernels right, on this device? Every implementation of every operation against its oracle in float64.

A part of gpu.py. Numbers are random; all that must not be read is NaN; and memory that results are put into has just
held NaN. An error is counted in units: 1 is what rounding explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import (
    Float8Pool,
    Int8Pool,
    grouped_matmul,
    kv_write,
    matmul,
    paged_attention,
    paged_attention_metadata,
    registry,
    rope_kv_write,
)
from pallas_kernels.grouped_matmul.oracle import multiply
from pallas_kernels.paged_attention.oracle import attend_rows
from pallas_kernels.scaled_pool import quantize_heads

BLOCK = 64
SCALED = {"int8": Int8Pool, "float8_e4m3fn": Float8Pool}
OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"window": 100}, {"soft_cap": 20.0}, {"sinks": True}, {"pool": "int8"}, {"pool": "float8_e4m3fn"},
    {"deterministic": True}, {"deterministic": True, "window": 100, "soft_cap": 20.0, "sinks": True})
POISON_BYTES = 1 << 28


@dataclass
class Step:
    """A step's arrays: rows of these numbers of queries and these lengths, over shuffled blocks."""

    q: jax.Array
    k_pool: Any
    v_pool: Any
    tables: jax.Array
    query_start: jax.Array
    lengths: jax.Array

    @property
    def arrays(self) -> tuple[Any, ...]:
        return self.q, self.k_pool, self.v_pool, self.tables, self.query_start, self.lengths


def step(heads: tuple[int, int, int], counts: list[int], lengths: list[int], seed: int = 0,
         pool: str | None = None) -> Step:
    """Random numbers in bfloat16, or pools in bytes; NaN in the null block and in the slots past a row's length."""
    num_heads, kv_heads, head_dim = heads
    blocks = [-(-length // BLOCK) for length in lengths]
    rng = np.random.default_rng(seed)
    order = 1 + rng.permutation(sum(blocks))
    tables = np.zeros((len(lengths), max(blocks)), np.int32)
    used = np.zeros((1 + sum(blocks), BLOCK), bool)
    for row, (count, length) in enumerate(zip(blocks, lengths, strict=True)):
        tables[row, :count], order = order[:count], order[count:]
        position = np.arange(length)
        used[tables[row, position // BLOCK], position % BLOCK] = True
    keys = jax.random.split(jax.random.key(seed), 3)
    shape = (used.shape[0], kv_heads, BLOCK, head_dim)
    pools = [jnp.where(jnp.asarray(used)[:, None, :, None], jax.random.normal(key, shape, jnp.bfloat16), jnp.nan)
             for key in keys[:2]]
    if pool is not None:
        pools = [SCALED[pool](*quantize_heads(each, jnp.dtype(pool))) for each in pools]
    q = jax.random.normal(keys[2], (sum(counts), num_heads, head_dim), jnp.bfloat16)
    query_start = jnp.asarray(np.concatenate([[0], np.cumsum(counts)]), jnp.int32)
    return Step(q, *pools, jnp.asarray(tables), query_start, jnp.asarray(lengths, jnp.int32))


def attend(implementation: str, **options: Any) -> Callable[..., Any]:
    """Attention over a step's arrays, compiled."""

    def function(q: jax.Array, k_pool: Any, v_pool: Any, tables: jax.Array, query_start: jax.Array,
                 lengths: jax.Array) -> Any:
        metadata = paged_attention_metadata(tables, query_start, lengths, q.shape[0], k_pool.shape[2])
        return paged_attention(q, k_pool, v_pool, metadata, scale=q.shape[2] ** -0.5, implementation=implementation,
                               **options)

    return jax.jit(function)


def implementations(operation: str) -> list[str]:
    """Those that can run here and are no oracle; the CPU's only on a CPU, the GPU's only on a GPU."""
    elsewhere = {"gpu": ("cpu",), "cpu": ("triton", "pallas")}[jax.default_backend()]
    return [name for name in registry.implementations(operation) if name not in ("oracle", *elsewhere)]


def check_all(models: dict[str, tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Lines of operation, case, implementation and error; one an implementation does not take says why instead."""
    found = []
    for cases in (_attention(models), _writes(models), _products()):
        for operation, case, measure in cases:
            for name in implementations(operation):
                line: dict[str, Any] = {"operation": operation, "case": case, "by": name}
                try:
                    _poison()
                    line["units"] = measure(name)
                except ValueError as error:  # ChoiceError: what it does not take
                    line["left out"] = str(error)[:120]
                found.append(line)
    return found


def _poison() -> None:
    jax.block_until_ready(jnp.full(POISON_BYTES // 4 if jax.default_backend() == "gpu" else 1024, jnp.nan))


def _attention(models: dict[str, tuple[int, int, int]]) -> Iterator[tuple[str, str, Callable[[str], float]]]:
    for model, heads in models.items():
        sinks = jnp.asarray(np.random.default_rng(3).standard_normal(heads[0]), jnp.float32)
        for chosen in OPTIONS:
            options = dict(chosen)
            case = step(heads, [1, 70, 1, 33], [300, 200, 1, 64], seed=1, pool=options.pop("pool", None))
            if options.pop("sinks", False):
                options["sinks"] = sinks
            expected = attend_rows(
                *jax.tree.map(np.asarray, case.arrays), heads[2] ** -0.5, options.get("window"),
                options.get("soft_cap"), None if "sinks" not in options else np.asarray(sinks))

            def measure(name: str, case: Step = case, options: dict[str, Any] = options,
                        expected: tuple[np.ndarray, np.ndarray] = expected) -> float:
                out, lse = attend(name, return_lse=True, **options)(*case.arrays)
                values = np.abs(np.asarray(out.astype(jnp.float32)) - expected[0]).max() / (4 * 2.0**-8)
                # 16 bits of queries, on CPUs with pools in int8, move a logit by 1e-4; else it is float32.
                return float(max(values, np.abs(np.asarray(lse) - expected[1]).max() / 1e-3))

            kinds = ", ".join(f"{key} {value}" for key, value in chosen.items()) or "plain"
            yield "paged_attention", f"{model}, {kinds}", measure


def _writes(models: dict[str, tuple[int, int, int]]) -> Iterator[tuple[str, str, Callable[[str], float]]]:
    rng = np.random.default_rng(4)
    tokens = 90
    slots = np.where(np.arange(tokens) % 7 == 3, 0, BLOCK + rng.permutation(2 * BLOCK)[:tokens]).astype(np.int32)
    for model, (num_heads, kv_heads, head_dim) in models.items():
        qkv = jnp.asarray(rng.standard_normal((tokens, num_heads + 2 * kv_heads, head_dim)), jnp.bfloat16)
        angles = rng.uniform(-9, 9, (tokens, head_dim // 2)).astype(np.float32)
        k, v = qkv[:, :kv_heads], qkv[:, kv_heads : 2 * kv_heads]
        for dtype in ("bfloat16", *SCALED):
            shape = (3, kv_heads, BLOCK, head_dim)
            pool: Any = jnp.full(shape, 7, dtype)
            if dtype in SCALED:
                pool = SCALED[dtype](pool, jnp.full(shape[:3], 7.0))
            for function, inputs in ((kv_write, (k, v)), (rope_kv_write, (qkv, jnp.cos(angles), jnp.sin(angles)))):

                def measure(name: str, function: Any = function, inputs: Any = inputs, pool: Any = pool) -> float:
                    given = (pool, pool, *inputs, jnp.asarray(slots))
                    written = jax.jit(lambda *given: function(*given, implementation=name))(*given)
                    return _apart(written, function(*given, implementation="oracle"))

                yield function.__name__, f"{model}, {dtype}", measure


def _apart(written: Any, expected: Any) -> float:
    """The largest difference but for the null block, in neighbours: a rounding may go to either side of a tie."""
    largest = 0.0
    for here, there in zip(written, expected, strict=True):
        kind = np.dtype(here.dtype)
        one, other = (np.asarray(x.values * x.scales[..., None] if hasattr(x, "scales") else x, np.float64)[
            1 if x.ndim == 4 else 0 :] for x in map(_wide, (here, there)))
        relative = {"int8": 0, "float8_e4m3fn": 2.0**-3}.get(kind.name, 2.0**-7)
        absolute = np.abs(other).max() * (1 / 126 if kind == np.int8 else 2.0**-16)
        largest = max(largest, float((np.abs(one - other) / (np.abs(other) * relative + absolute)).max()))
    return largest


def _wide(array: Any) -> Any:
    if hasattr(array, "scales"):
        return array.values.astype(jnp.float32) * array.scales[..., None]
    return array.astype(jnp.float32)


def _products() -> Iterator[tuple[str, str, Callable[[str], float]]]:
    rng = np.random.default_rng(2)
    x, w = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in ((130, 512), (8, 256, 512)))
    sizes = jnp.asarray([30, 0, 1, 64, 0, 17, 10, 3], jnp.int32)
    in_bytes, scales = w.astype(jnp.float8_e4m3fn), jnp.asarray(rng.uniform(0.5, 2, (8, 256)), jnp.float32)

    def error(out: jax.Array, wanted: np.ndarray) -> float:
        return float(np.abs(np.asarray(out) - wanted).max() / np.abs(wanted).max() / 2.0**-20)

    for case, weights, factors in (("bfloat16", w, None), ("float8", in_bytes, scales)):
        wanted = multiply(*map(np.asarray, (x, weights, sizes)), None if factors is None else np.asarray(factors))
        yield "grouped_matmul", case, lambda name, weights=weights, factors=factors, wanted=wanted: error(
            grouped_matmul(x, weights, sizes, factors, "float32", name), wanted)
    wanted = np.asarray(x, np.float64) @ np.asarray(w[0], np.float64).T
    yield "matmul", "bfloat16", lambda name: error(matmul(x, w[0], "float32", name), wanted)
