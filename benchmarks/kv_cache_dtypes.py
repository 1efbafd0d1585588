"""What does a KV cache in int8 save: memory per token, and the time that attention takes?

Attention alone, of all layers one after the other, each with pools of its own as in a model; then decoding steps of one
request in an engine. The dtypes take turns, call by call; the fastest call of each is compared, and the medians, as a
shared machine slows some down at random.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from harness import describe_machine, format_table, machine_line, write_json

from jaxllm import LLM, SamplingParams
from jaxllm.kv_cache import KVSpec, kv_spec, unfilled_pool
from jaxllm.loading import open_model, open_source
from jaxllm.models.config import DecoderConfig
from pallas_kernels import kv_write, paged_attention, paged_attention_metadata

BLOCK_SIZE = 32
DTYPES = ("bfloat16", "int8")


@dataclasses.dataclass(frozen=True)
class Case:
    """Requests of ``context`` tokens, of which each computes the last ``count``."""

    rows: int
    context: int
    count: int = 1

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.rows} x {self.count} after {self.context - self.count:,}"


CASES = (Case(64, 200), Case(1, 4096), Case(8, 4096), Case(1, 8192), Case(1, 4096, 512))


@dataclasses.dataclass(frozen=True)
class Figures:
    """Of a case and dtype: milliseconds for all layers."""

    case: str
    dtype: str
    fastest: float
    median: float


def attention_of(config: DecoderConfig, spec: KVSpec, case: Case) -> Any:
    """A function without arguments that runs the attention of all layers."""
    columns = -(-case.context // BLOCK_SIZE)
    tables = jnp.asarray(1 + np.random.default_rng(0).permutation(case.rows * columns).reshape(case.rows, columns),
                         jnp.int32)
    tokens = case.rows * case.count
    rows = case.rows * columns * BLOCK_SIZE
    pools = jax.jit(lambda: unfilled_pool(spec, 1 + case.rows * columns, BLOCK_SIZE))()
    slots = BLOCK_SIZE + jnp.arange(rows, dtype=jnp.int32)
    noise = jax.random.normal(jax.random.key(0), (rows, config.num_kv_heads, config.head_dim), jnp.bfloat16)
    fill = jax.jit(lambda layer, x: kv_write(layer["k"], layer["v"], x, x, slots), donate_argnums=0)
    pools = [dict(zip("kv", fill(layer, noise), strict=True)) for layer in pools]
    query_start = jnp.arange(0, tokens + 1, case.count, dtype=jnp.int32)
    lengths = jnp.full(case.rows, case.context, jnp.int32)
    q = jax.random.normal(jax.random.key(1), (max(8, tokens), config.num_heads, config.head_dim), jnp.bfloat16)

    @jax.jit
    def step(q: Any, pools: Any) -> Any:
        metadata = paged_attention_metadata(tables, query_start, lengths, q.shape[0], BLOCK_SIZE)
        for layer in pools:
            q = paged_attention(q, layer["k"], layer["v"], metadata, scale=config.head_dim**-0.5)
        return q

    return functools.partial(step, q, pools)


def measure(config: DecoderConfig, case: Case, calls: int) -> list[Figures]:
    """Both dtypes in turn."""
    steps = [attention_of(config, kv_spec(config, jnp.dtype(dtype)), case) for dtype in DTYPES]
    times: list[list[float]] = [[] for _ in DTYPES]
    for call in range(calls + 2):
        for step, found in zip(steps, times, strict=True):
            start = time.perf_counter()
            step().block_until_ready()
            if call > 1:
                found.append(1e3 * (time.perf_counter() - start))
    return [Figures(case.name, dtype, min(found), statistics.median(found))
            for dtype, found in zip(DTYPES, times, strict=True)]


def measure_steps(model: str, context: int, steps: int) -> list[Figures]:
    """Decoding steps of one request after so many tokens, of engines that take turns."""
    llms = [LLM(model, dtype="bfloat16", kv_cache_dtype=dtype, max_num_seqs=8, max_model_len=context + steps + 8,
                speculative_config=None, overlap=False) for dtype in DTYPES]
    tokens = llms[0].engine.config.vocab_size
    prompt = np.random.default_rng(0).integers(0, tokens, context).tolist()
    for llm in llms:
        llm.engine.add_request(prompt, SamplingParams(temperature=0.0, max_tokens=steps + 4, ignore_eos=True))
        while not llm.stats().num_generated_tokens:
            llm.engine.step()
    times: list[list[float]] = [[] for _ in llms]
    for _ in range(steps):
        for llm, found in zip(llms, times, strict=True):
            start = time.perf_counter()
            llm.engine.step()
            found.append(1e3 * (time.perf_counter() - start))
    return [Figures(f"a step after {context:,}", dtype, min(found), statistics.median(found))
            for dtype, found in zip(DTYPES, times, strict=True)]


def line(plain: Figures, quantized: Figures) -> tuple[str, ...]:
    """Both dtypes' figures, for a table."""
    return (plain.case, f"{plain.fastest:.2f}", f"{quantized.fastest:.2f}", f"{quantized.fastest / plain.fastest:.2f}",
            f"{quantized.median / plain.median:.2f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct", help="as for LLM (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=30, help="of each dtype (default: %(default)s)")
    parser.add_argument("--context", type=int, default=8000, help="of the decoding steps (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    config = open_model(open_source(chosen.model), "bfloat16").model.config
    machine = describe_machine()
    print(machine_line(machine))
    nbytes = {dtype: kv_spec(config, jnp.dtype(dtype)).bytes_per_token for dtype in DTYPES}
    print(format_table(("cache", "bytes per token"), [(dtype, f"{size:,}") for dtype, size in nbytes.items()]))
    pairs = [measure(config, case, chosen.calls) for case in CASES]
    pairs.append(measure_steps(chosen.model, chosen.context, chosen.calls))
    print(format_table(("tokens computed", "bfloat16 ms", "int8 ms", "ratio", "of medians"),
                       [line(*pair) for pair in pairs]))
    write_json(chosen.json, {"machine": machine, "bytes_per_token": nbytes,
                             "figures": [dataclasses.asdict(each) for pair in pairs for each in pair]})


if __name__ == "__main__":
    main()
