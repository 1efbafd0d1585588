"""What does it cost that a request's results do not depend, to the bit, on its batch mates?

Times, per layer and interleaved, the attention that jaxllm runs (``pallas_kernels``, implementation ``xla``: tiles of
fixed shape, keys in fixed groups) against a plain one (gather the blocks, two einsums, a softmax), and RMSNorm with
sums in a fixed order against RMSNorm with ``jnp.sum``. The first of each pair runs in the padded shapes of an engine,
the plain one in the exact shapes of the case, which an engine could not compile for.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness import describe_machine, format_table, machine_line, write_json
from jaxtyping import Array, Float, Int32

from jaxllm.platform import resolve_dtype
from jaxllm.runner.buckets import bucket_for, buckets
from pallas_kernels import PagedAttentionMetadata, paged_attention, paged_attention_metadata
from pallas_kernels.reductions import row_sum

EPSILON = 1e-5


@dataclasses.dataclass(frozen=True)
class Shape:
    """The model's attention and the engine's sizes. layers: how many are chained in one timed program, each with pools
    of its own, so that they are not found in the processor's caches."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    max_num_seqs: int
    max_model_len: int
    max_num_batched_tokens: int
    layers: int


@dataclasses.dataclass(frozen=True)
class Case:
    """``rows`` requests that compute ``queries`` tokens each, the last of their ``context`` tokens."""

    kind: str
    rows: int
    queries: int
    context: int

    @property
    def label(self) -> str:
        """As in "decode 8x256" or "prefill 512@3584", the latter after 3,584 tokens."""
        if self.kind == "decode":
            return f"decode {self.rows}x{self.context}"
        return f"prefill {self.queries}@{self.context - self.queries}"


CASES = (
    Case("decode", 1, 1, 256), Case("decode", 8, 1, 256), Case("decode", 64, 1, 256), Case("decode", 8, 1, 4096),
    Case("prefill", 1, 512, 512), Case("prefill", 1, 512, 4096),
)
NORM_ROWS = (8, 64, 512)


@dataclasses.dataclass(frozen=True)
class Cost:
    """Milliseconds per layer (or norm), medians; ``difference`` is the largest between the two results."""

    label: str
    fixed_ms: float
    plain_ms: float
    difference: float


def fixed_attention(q: Float[Array, "T N H"], k: Float[Array, "P K S H"], v: Float[Array, "P K S H"],
                    metadata: PagedAttentionMetadata) -> Float[Array, "T N H"]:
    """The library's attention."""
    return paged_attention(q, k, v, metadata, scale=q.shape[-1] ** -0.5, implementation="xla")


def plain_attention(q: Float[Array, "B Q N H"], k: Float[Array, "P K S H"], v: Float[Array, "P K S H"],
                    tables: Int32[Array, "B M"], context: int) -> Float[Array, "B Q N H"]:
    """Causal attention of the last Q of ``context`` tokens of each row: gather, einsum, softmax in float32, einsum."""
    batch, queries, heads, head_dim = q.shape
    kv_heads, block_size = k.shape[1:3]
    slots = tables.shape[1] * block_size
    grouped = q.reshape(batch, queries, kv_heads, heads // kv_heads, head_dim)
    scores = jnp.einsum("bqkrh,bmksh->bkrqms", grouped, k[tables], preferred_element_type=jnp.float32)
    scores = scores.reshape(*scores.shape[:4], slots) * head_dim**-0.5
    positions = context - queries + jnp.arange(queries)
    visible = jnp.arange(slots) <= positions[:, None]
    weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1).astype(q.dtype)
    weights = weights.reshape(*weights.shape[:4], tables.shape[1], block_size)
    out = jnp.einsum("bkrqms,bmksh->bqkrh", weights, v[tables], preferred_element_type=jnp.float32)
    return out.reshape(q.shape).astype(q.dtype)


def rms_norm(x: Float[Array, "T D"], weight: Float[Array, " D"], total: Callable[[Array], Array]
             ) -> Float[Array, "T D"]:
    """RMSNorm in float32 with a given sum over the last axis."""
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(total(wide * wide) / x.shape[-1] + EPSILON)[:, None]
    return (normed * weight).astype(x.dtype)


def attention_cost(case: Case, shape: Shape, dtype: jnp.dtype, repeat: int) -> Cost:
    """Time one case, a chain of layers in either way."""
    rng = np.random.default_rng(0)
    columns = -(-case.context // shape.block_size)
    num_blocks = case.rows * columns + 1
    pool = (num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim)
    pools = [(random(rng, pool, dtype), random(rng, pool, dtype)) for _ in range(shape.layers)]
    tables = (rng.permutation(num_blocks - 1) + 1).astype(np.int32).reshape(case.rows, columns)
    q = random(rng, (case.rows, case.queries, shape.num_heads, shape.head_dim), dtype)

    tokens = case.rows * case.queries
    padded = bucket_for(buckets(shape.max_num_batched_tokens), tokens)
    flat = jnp.pad(q.reshape(tokens, *q.shape[2:]), ((0, padded - tokens), (0, 0), (0, 0)))
    metadata = engine_metadata(case, shape, tables, padded)

    @jax.jit
    def fixed(q: Array, pools: list[tuple[Array, Array]], metadata: PagedAttentionMetadata) -> Array:
        for k, v in pools:
            q = fixed_attention(q, k, v, metadata)
        return q

    @jax.jit
    def plain(q: Array, pools: list[tuple[Array, Array]], tables: Array) -> Array:
        for k, v in pools:
            q = plain_attention(q, k, v, tables, case.context)
        return q

    first = functools.partial(fixed, flat, pools, metadata)
    second = functools.partial(plain, q, pools, jnp.asarray(tables))
    difference = largest_difference(first()[:tokens], second().reshape(tokens, *q.shape[2:]))
    return Cost(case.label, *interleaved(first, second, repeat, shape.layers), difference)


def engine_metadata(case: Case, shape: Shape, tables: np.ndarray, padded: int) -> PagedAttentionMetadata:
    """The case in an engine's table: ``max_num_seqs`` rows, those that do not run empty, ``max_model_len`` wide."""
    wide = np.zeros((shape.max_num_seqs, -(-shape.max_model_len // shape.block_size)), np.int32)
    wide[:case.rows, :tables.shape[1]] = tables
    starts = np.minimum(np.arange(shape.max_num_seqs + 1), case.rows).astype(np.int32) * case.queries
    lengths = np.where(np.arange(shape.max_num_seqs) < case.rows, case.context, 0).astype(np.int32)
    make = jax.jit(paged_attention_metadata, static_argnames=("num_tokens_padded", "block_size"))
    return make(wide, starts, lengths, num_tokens_padded=padded, block_size=shape.block_size)


def norm_cost(rows: int, width: int, dtype: jnp.dtype, repeat: int, norms: int = 16) -> Cost:
    """Time a chain of norms, kept apart as the matrix products of a model would."""
    rng = np.random.default_rng(0)
    x = random(rng, (rows, width), dtype)
    weights = [1 + random(rng, (width,), dtype) / 8 for _ in range(norms)]

    def chain(total: Callable[[Array], Array]) -> Callable[[], Array]:
        @jax.jit
        def run(x: Array, weights: list[Array]) -> Array:
            for weight in weights:
                x = jax.lax.optimization_barrier(rms_norm(x, weight.astype(jnp.float32), total))
            return x

        return functools.partial(run, x, weights)

    first, second = chain(row_sum), chain(functools.partial(jnp.sum, axis=-1))
    difference = largest_difference(first(), second())
    return Cost(f"RMSNorm {rows}x{width}", *interleaved(first, second, repeat, norms), difference)


def random(rng: np.random.Generator, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Normally distributed numbers."""
    return jnp.asarray(rng.standard_normal(shape, np.float32), dtype)


def largest_difference(first: Array, second: Array) -> float:
    """The largest difference relative to the largest value."""
    one, other = np.asarray(first, np.float32), np.asarray(second, np.float32)
    return float(np.max(np.abs(one - other)) / np.max(np.abs(other)))


def interleaved(first: Callable[[], Array], second: Callable[[], Array], repeat: int, parts: int
                ) -> tuple[float, float]:
    """Median milliseconds of each, per part, taken in turn so that a drifting machine treats both alike."""
    seconds: tuple[list[float], list[float]] = ([], [])
    for function in (first, second):
        jax.block_until_ready(function())
    for _ in range(repeat):
        for function, taken in zip((first, second), seconds, strict=True):
            started = time.perf_counter()
            jax.block_until_ready(function())
            taken.append(time.perf_counter() - started)
    one, other = (1e3 * statistics.median(taken) / parts for taken in seconds)
    return one, other


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if the two ways do not agree, for then their times mean nothing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="auto", help="as for LLM (default: %(default)s)")
    sizes = {"num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "block_size": 32, "max_num_seqs": 64,
             "max_model_len": 8192, "max_num_batched_tokens": 512, "layers": 4}
    for name, default in sizes.items():
        parser.add_argument("--" + name.replace("_", "-"), type=int, default=default, help="(default: %(default)s)")
    parser.add_argument("--cases", default=",".join(case.label.split()[1] for case in CASES),
                        help="ROWSxCONTEXT for decodes, QUERIES@BEFORE for a prefill chunk (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=20, help="timed runs of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    try:
        shape = Shape(**{name: getattr(chosen, name) for name in sizes})
        dtype = resolve_dtype(chosen.dtype, jax.default_backend())
        cases = [parse_case(text, shape) for text in chosen.cases.split(",")]
    except ValueError as error:
        parser.error(str(error))
    width = shape.num_heads * shape.head_dim
    costs = [attention_cost(case, shape, dtype, chosen.repeat) for case in cases]
    costs += [norm_cost(rows, width, dtype, chosen.repeat) for rows in NORM_ROWS]
    machine = describe_machine()
    print(f"{machine_line(machine)}\n{dtype.name}, {shape.num_heads}/{shape.num_kv_heads} heads of {shape.head_dim}, "
          f"blocks of {shape.block_size}; ms per layer or norm, medians of {chosen.repeat}\n")
    print(format_table(("case", "invariant ms", "plain ms", "ratio", "largest difference"), (
        (cost.label, f"{cost.fixed_ms:.3f}", f"{cost.plain_ms:.3f}", f"{cost.fixed_ms / cost.plain_ms:.2f}",
         f"{cost.difference:.1e}") for cost in costs)))
    details: dict[str, Any] = {"machine": machine, "dtype": dtype.name, "shape": dataclasses.asdict(shape)}
    write_json(chosen.json, {**details, "results": [dataclasses.asdict(cost) for cost in costs]})
    # A chain rounds to the dtype after each layer. In float32 the sums weigh more: a few thousand terms added in
    # another order differ by about the root of their number, in units of the last place.
    tolerance = max(8 * float(jnp.finfo(dtype).eps), 1e-5)
    wrong = [cost.label for cost in costs if not cost.difference <= tolerance]
    if wrong:
        print(f"\nthe two ways differ by more than {tolerance:.1e} in: {', '.join(wrong)}")
    return int(bool(wrong))


def parse_case(text: str, shape: Shape) -> Case:
    """A case from "8x256" or "512@3584". Raises ``ValueError`` if the engine could not run it in one step."""
    if "@" in text:
        queries, before = map(int, text.split("@"))
        case = Case("prefill", 1, queries, before + queries)
    else:
        rows, context = map(int, text.split("x"))
        case = Case("decode", rows, 1, context)
    tokens = case.rows * case.queries
    if not (1 <= case.rows <= shape.max_num_seqs and 1 <= tokens <= shape.max_num_batched_tokens
            and case.queries <= case.context <= shape.max_model_len):
        raise ValueError(f"case {text!r} does not fit max_num_seqs={shape.max_num_seqs}, max_num_batched_tokens="
                         f"{shape.max_num_batched_tokens} and max_model_len={shape.max_model_len}")
    return case


if __name__ == "__main__":
    raise SystemExit(main())
