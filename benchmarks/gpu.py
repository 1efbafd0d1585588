"""What the GPU kernels do on a GPU: right first, then how fast. One short run, no network.

    python benchmarks/gpu.py [--json FILE] [--tune]

1. Every kernel against its oracle, on random numbers, with NaN in all that must not be read (gpu_correctness.py).
2. Decode attention: bytes of keys and values per second, against a copy of as many bytes.
3. Prefill attention: products per second, against a matrix product and against cuDNN's attention over contiguous keys.
4. What ``deterministic=True`` costs in both.
5. Tokens per second of a random model of Llama 3 8B's shape, for 1, 32 and 256 requests at a time (gpu_model.py).

With ``--tune``, 2 and 3 run for several tile sizes, which are printed with the fastest first: candidates for
pallas_kernels/gpu_tiles.py. What has not begun 6.5 minutes after the start is left out, which the output says, so that
the whole takes less than 8. Without a GPU, 1 runs on the CPU over what can run there, with fewer heads, and the rest is
left out, which the output says too.
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
from gpu_correctness import attend, check_all, implementations, step
from gpu_model import LLAMA_3_8B, tokens_per_second

from pallas_kernels import gpu_tiles

HEADS = {"llama-3-8b": (32, 8, 128), "gpt-oss-120b": (64, 8, 64)}
FEW_HEADS = {"like llama-3-8b": (4, 1, 128), "like gpt-oss-120b": (8, 1, 64)}
"""Of one kv head, for CPUs."""
REPEATS = 20
LATEST = 390
"""Seconds after the start at which something may still begin."""


def seconds(function: Callable[..., Any], *arguments: Any, repeats: int = REPEATS) -> float:
    """The median of several calls, after one that compiles."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


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
    begin = time.monotonic()
    device, on_gpu = jax.devices()[0], jax.default_backend() == "gpu"
    print(f"{device.device_kind}, JAX {jax.__version__}")
    lines = check_all(HEADS if on_gpu else FEW_HEADS)
    report: dict[str, Any] = {
        "device": device.device_kind, "jax": jax.__version__, "tiles": gpu_tiles.VERSION, "correctness": lines}
    show("errors, in units (1 is what rounding explains)", lines)
    wrong = [line for line in lines if "units" in line and not line["units"] <= 1]
    names = [name for name in implementations("paged_attention") if name != "xla"]
    parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "decode": lambda: decode(names, (1, 32, 256), (4096, 16_384)),
        "prefill": lambda: prefill(names, (2048, 16_384)),
        "deterministic": lambda: (decode(["triton"], (32,), (4096,), deterministic=True)
                                  + prefill(["triton"], (16_384,), deterministic=True)),
        "tokens per second": lambda: tokens_per_second(LLAMA_3_8B, (1, 32, 256)),
    }
    if given.tune:
        parts["tune"] = tune
    if not on_gpu:
        report["skipped"] = f"no GPU here: {', '.join(parts)} were left out"
        parts = {}
    late = []
    for name, run in parts.items():
        if time.monotonic() - begin > LATEST and name != "tune":
            late.append(name)
            continue
        report[name] = run()
        show(name, report[name])
    if late:
        report["skipped"] = f"no time was left: {', '.join(late)} were left out"
    if "skipped" in report:
        print(f"\n{report['skipped']}")
    if given.json is not None:
        given.json.write_text(json.dumps(report, indent=1))
    if wrong:
        raise SystemExit(f"{len(wrong)} results are wrong: {wrong[:3]}")
    return report


if __name__ == "__main__":
    main()
