"""What does a product cost with each instruction set, and in XLA?

One core's time, the least of interleaved runs on that core. XLA takes the best instructions that it finds on the
machine, whatever the kernels are limited to.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from harness import describe_machine, format_table, machine_line, write_json

from pallas_kernels import cpu, matmul, quantized_matmul
from pallas_kernels.quantized import FORMATS

KINDS = ("bfloat16", *FORMATS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1536, help="in multiples of 256 (default: %(default)s)")
    parser.add_argument("--outputs", type=int, default=1536, help="(default: %(default)s)")
    parser.add_argument("--tokens", default="1,8,128", help="rows of activations (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=30, help="timed runs of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    if reason := cpu.unavailable():
        parser.error(f"there are no native kernels here: {reason}")
    machine = describe_machine()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    print(f"{machine_line(machine)}\n[{chosen.outputs}, {chosen.inputs}] weights; microseconds of one core\n")
    columns = (*cpu.instruction_sets(), "xla bfloat16", "xla float32")
    results = {f"{kind}, {tokens}": microseconds(kind, tokens, chosen.inputs, chosen.outputs, chosen.repeat)
               for kind in KINDS for tokens in map(int, chosen.tokens.split(","))}
    print(format_table(("weights, tokens", *columns), (
        (name, *(f"{found[column]:.0f}" if column in found else "" for column in columns))
        for name, found in results.items())))
    write_json(chosen.json, {"machine": machine, "repeat": chosen.repeat, "microseconds": results})
    return 0


def microseconds(kind: str, tokens: int, inputs: int, outputs: int, repeat: int) -> dict[str, float]:
    """The least time of each implementation."""
    before = cpu.instruction_set()
    calls = _calls(kind, tokens, inputs, outputs)
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeat + 1):
        for name, call in calls.items():
            best[name] = min(best[name], _seconds(call) * 1e6)
    cpu.use_instruction_set(before)
    return best


def _calls(kind: str, tokens: int, inputs: int, outputs: int) -> dict[str, Callable[[], jax.Array]]:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(tokens, inputs)), jnp.bfloat16)
    if kind != "bfloat16":
        layout = FORMATS[kind]
        weight = jnp.asarray(rng.integers(0, 64, (outputs, inputs // layout.block * layout.nbytes)), jnp.uint8)
        scale = jnp.ones(outputs, jnp.float32) if layout.scaled else None
        product = jax.jit(lambda: quantized_matmul(x, weight, kind, scale, implementation="cpu"))
        return _native(product)
    weight = jnp.asarray(rng.normal(size=(outputs, inputs)), jnp.bfloat16)
    product = jax.jit(lambda x, weight: matmul(x, weight, implementation="cpu"))
    xla = jax.jit(lambda x, weight: matmul(x, weight, implementation="xla"))
    wide = x.astype(jnp.float32), weight.astype(jnp.float32)
    return {**_native(lambda: product(x, weight)), "xla bfloat16": lambda: xla(x, weight),
            "xla float32": lambda: xla(*wide)}


def _native(product: Callable[[], jax.Array]) -> dict[str, Callable[[], jax.Array]]:
    def by(name: str) -> Callable[[], jax.Array]:
        def call() -> jax.Array:
            cpu.use_instruction_set(name)
            return product()
        return call

    return {name: by(name) for name in cpu.instruction_sets()}


def _seconds(call: Callable[[], jax.Array]) -> float:
    start = time.process_time()
    call().block_until_ready()
    return time.process_time() - start


if __name__ == "__main__":
    raise SystemExit(main())
