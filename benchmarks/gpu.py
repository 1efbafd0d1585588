"""What the GPU kernels do on a GPU: right first, then how fast. One short run, no network.

    python benchmarks/gpu.py [--json FILE] [--tune]

1. Every kernel against its oracle, on fresh random numbers, with NaN in all that must not be read.
2. Decode attention: bytes of keys and values per second, against a copy of as many bytes.
3. Prefill attention: products per second, against a matrix product and against cuDNN's attention over contiguous keys.
4. What ``deterministic=True`` costs in both.

With ``--tune``, 2 and 3 run for several tile sizes, which are printed with the fastest first: candidates for
pallas_kernels/gpu_tiles.py. Without a GPU, 1 runs on the CPU over what can run there, and the rest is left out, which
the output says.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib
import json
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pallas_kernels import gpu_tiles, grouped_matmul, matmul, paged_attention, paged_attention_metadata, registry
from pallas_kernels.grouped_matmul.oracle import multiply
from pallas_kernels.paged_attention.oracle import attend_rows

HEADS = {"llama-3-8b": (32, 8, 128), "gpt-oss-120b": (64, 8, 64)}
BLOCK = 64
REPEATS = 20


def implementations(operation: str) -> list[str]:
    """Those that can run here and are no oracle; the CPU's only on a CPU, the GPU's only on a GPU."""
    elsewhere = {"gpu": ("cpu",), "cpu": ("triton", "pallas")}[jax.default_backend()]
    return [name for name in registry.implementations(operation) if name not in ("oracle", *elsewhere)]


@dataclasses.dataclass
class Step:
    """A step's arrays: rows of these numbers of queries and these lengths, over shuffled blocks."""

    q: jax.Array
    k_pool: jax.Array
    v_pool: jax.Array
    tables: jax.Array
    query_start: jax.Array
    lengths: jax.Array

    @property
    def arrays(self) -> tuple[jax.Array, ...]:
        return self.q, self.k_pool, self.v_pool, self.tables, self.query_start, self.lengths


def step(heads: tuple[int, int, int], counts: list[int], lengths: list[int], seed: int = 0) -> Step:
    """Random numbers in bfloat16; NaN in the null block and in the slots past a row's length."""
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
    q = jax.random.normal(keys[2], (sum(counts), num_heads, head_dim), jnp.bfloat16)
    query_start = jnp.asarray(np.concatenate([[0], np.cumsum(counts)]), jnp.int32)
    return Step(q, *pools, jnp.asarray(tables), query_start, jnp.asarray(lengths, jnp.int32))


def attend(implementation: str, **options: Any) -> Callable[..., jax.Array]:
    """Attention over a step's arrays, compiled."""

    def function(q: jax.Array, k_pool: jax.Array, v_pool: jax.Array, tables: jax.Array, query_start: jax.Array,
                 lengths: jax.Array) -> jax.Array:
        metadata = paged_attention_metadata(tables, query_start, lengths, q.shape[0], k_pool.shape[2])
        return paged_attention(q, k_pool, v_pool, metadata, scale=q.shape[2] ** -0.5, implementation=implementation,
                               **options)

    return jax.jit(function)


def seconds(function: Callable[..., Any], *arguments: Any, repeats: int = REPEATS) -> float:
    """The median of several calls, after one that compiles."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def correctness() -> list[dict[str, Any]]:
    """The largest error of each kernel, in units of what its dtype can resolve of the largest number."""
    found = []
    for model, heads in HEADS.items():
        case = step(heads, [1, 70, 1, 33], [300, 200, 1, 64], seed=1)
        for options in ({}, {"window": 100}, {"soft_cap": 20.0}, {"deterministic": True}):
            expected = attend_rows(*map(np.asarray, case.arrays), heads[2] ** -0.5, options.get("window"),
                                   options.get("soft_cap"))[0]
            for name in implementations("paged_attention"):
                if name == "xla" and options.get("deterministic") and jax.default_backend() != "cpu":
                    continue
                out = np.asarray(attend(name, **options)(*case.arrays).astype(jnp.float32))
                found.append({"operation": "paged_attention", "case": model, "options": options, "by": name,
                              "units": float(np.abs(out - expected).max() / (4 * 2.0**-8))})
    rng = np.random.default_rng(2)
    x, w = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in ((130, 512), (8, 256, 512)))
    sizes = jnp.asarray([30, 0, 1, 64, 0, 17, 10, 3], jnp.int32)
    for name in implementations("grouped_matmul"):
        out = np.asarray(grouped_matmul(x, w, sizes, out_dtype="float32", implementation=name))
        wanted = multiply(np.asarray(x), np.asarray(w), np.asarray(sizes))
        found.append({"operation": "grouped_matmul", "by": name,
                      "units": float(np.abs(out - wanted).max() / np.abs(wanted).max() / 2.0**-20)})
    for name in implementations("matmul"):
        out = np.asarray(matmul(x, w[0], "float32", implementation=name))
        wanted = np.asarray(x, np.float64) @ np.asarray(w[0], np.float64).T
        found.append({"operation": "matmul", "by": name,
                      "units": float(np.abs(out - wanted).max() / np.abs(wanted).max() / 2.0**-20)})
    return found


def decode(
    names: Iterable[str], batches: Iterable[int], lengths: Iterable[int], **options: Any
) -> list[dict[str, Any]]:
    """Rows of one query each: GB/s of keys and values, and that as a part of what a copy reaches."""
    found = []
    for batch in batches:
        for length in lengths:
            heads = HEADS["llama-3-8b"]
            case = step(heads, [1] * batch, [length] * batch)
            size = 2 * batch * length * heads[1] * heads[2] * 2
            copied = jnp.zeros(size // 4, jnp.bfloat16)  # half is read, half is written
            copy = size / seconds(jax.jit(lambda x: x + 1), copied)
            for name in names:
                rate = size / seconds(attend(name, **options), *case.arrays)
                found.append({"batch": batch, "length": length, "by": name, **options, "GB/s": rate / 1e9,
                              "of a copy": rate / copy})
    return found


def prefill(names: Iterable[str], lengths: Iterable[int], **options: Any) -> list[dict[str, Any]]:
    """One row whose context is all queries: TFLOP/s, and that as a part of cuDNN's and of a matrix product's."""
    found = []
    num_heads, kv_heads, head_dim = heads = HEADS["llama-3-8b"]
    square = jnp.ones((8192, 8192) if jax.default_backend() == "gpu" else (256, 256), jnp.bfloat16)
    product = 2 * square.shape[0] ** 3 / seconds(jax.jit(jnp.matmul), square, square)
    for length in lengths:
        case = step(heads, [length], [length])
        work = 2 * 2 * num_heads * head_dim * length * (length + 1) / 2
        q, k = case.q[None], jnp.ones((1, length, kv_heads, head_dim), jnp.bfloat16)
        contiguous = functools.partial(jax.nn.dot_product_attention, is_causal=True,
                                       implementation="cudnn" if jax.default_backend() == "gpu" else "xla")
        other = work / seconds(jax.jit(contiguous), q, k, k)
        for name in names:
            rate = work / seconds(attend(name, **options), *case.arrays)
            found.append({"length": length, "by": name, **options, "TFLOP/s": rate / 1e12,
                          "of contiguous attention": rate / other, "of a matrix product": rate / product})
    return found


def tune() -> list[dict[str, Any]]:
    """Triton's tiles for this GPU, the fastest first; every one computes the same function."""
    module = importlib.import_module("pallas_kernels.paged_attention.triton")
    base = module.attention_tiles(module.compute_capability(), HEADS["llama-3-8b"][2])
    found = []
    for kind, measured in (("prefill", "TFLOP/s"), ("decode", "GB/s")):
        for rows in (64, 128) if kind == "prefill" else (16,):
            for keys in (32, 64, 128):
                for warps in (4, 8):
                    for stages in (2, 3, 4):
                        tile = gpu_tiles.AttentionTile(rows, keys, warps, stages)
                        tiles = dataclasses.replace(base, **{kind: tile})
                        module.attention_tiles = lambda *_, tiles=tiles: tiles
                        try:
                            lines = (prefill(["triton"], [8192]) if kind == "prefill"
                                     else decode(["triton"], [32], [4096]))
                        except Exception as error:  # too much shared memory, say: no candidate
                            print(f"{kind} {tile}: {str(error)[:100]}")
                            continue
                        found.append({"kind": kind, "tile": str(tile), measured: lines[0][measured]})
    return sorted(found, key=lambda line: (line["kind"], -line.get("TFLOP/s", 0), -line.get("GB/s", 0)))


def show(title: str, lines: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    for line in lines:
        print("  " + "  ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
                               for name, value in line.items()))


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="a file for all figures")
    parser.add_argument("--tune", action="store_true", help="try tile sizes")
    given = parser.parse_args(arguments)
    device = jax.devices()[0]
    report: dict[str, Any] = {
        "device": device.device_kind, "jax": jax.__version__, "tiles": gpu_tiles.VERSION, "correctness": correctness()}
    print(f"{device.device_kind}, JAX {jax.__version__}")
    show("errors, in units (1 is what rounding explains)", report["correctness"])
    wrong = [line for line in report["correctness"] if not line["units"] <= 1]
    if jax.default_backend() != "gpu":
        report["skipped"] = "no GPU here: decode, prefill, deterministic and --tune were left out"
        print(f"\n{report['skipped']}")
    else:
        names = [name for name in implementations("paged_attention") if name != "xla"]
        report["decode"] = decode(names, (1, 32, 256), (4096, 16_384))
        show("decode", report["decode"])
        report["prefill"] = prefill(names, (2048, 16_384))
        show("prefill", report["prefill"])
        report["deterministic"] = (decode(["triton"], (32,), (4096,), deterministic=True)
                                   + prefill(["triton"], (16_384,), deterministic=True))
        show("deterministic", report["deterministic"])
        if given.tune:
            report["tune"] = tune()
            show("tiles", report["tune"])
    if given.json is not None:
        given.json.write_text(json.dumps(report, indent=1))
    if wrong:
        raise SystemExit(f"{len(wrong)} results are wrong: {wrong[:3]}")
    return report


if __name__ == "__main__":
    main()
