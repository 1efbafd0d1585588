"""How much KV memory does one long sequence of a model with sliding windows hold?

Runs one request through the scheduler and the block manager, without a model, for the layers of published models, and
compares the bytes that it holds with the least that will do: for each layer, as many tokens as its window sees. Beside
it: what every layer keeping everything would hold, the most that is held between two steps and within one, while it
computes a chunk of the prompt, and the smallest pool in which the same request runs to its end, in smaller chunks.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
from harness import describe_machine, format_table, machine_line, write_json

from jaxllm.engine.block_manager import BlockManager
from jaxllm.engine.limits import SchedulerConfig
from jaxllm.engine.request import Request
from jaxllm.engine.scheduler import Scheduler
from jaxllm.engine.stopping import check_stop
from jaxllm.kv_cache import KVSpec, kv_spec
from jaxllm.models.config import DecoderConfig
from jaxllm.sampling_params import SamplingParams

LIMIT = 1.25
"""The most that a sequence may hold, in multiples of the least that will do."""
OUTPUT = 64


@dataclasses.dataclass(frozen=True)
class Layers:
    """What the cache depends on. every: each so-many-th layer sees everything; 0: none does."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    window: int
    every: int

    def spec(self, length: int) -> KVSpec:
        """The cache for sequences of a length, in bfloat16."""
        full = tuple(range(self.every - 1, self.num_layers, self.every)) if self.every else ()
        config = DecoderConfig(
            family="gemma3_text", vocab_size=8, hidden_size=8, num_layers=self.num_layers, num_heads=self.num_kv_heads,
            num_kv_heads=self.num_kv_heads, head_dim=self.head_dim, intermediate_size=8,
            max_position_embeddings=length, sliding_window=self.window, full_layers=full)
        return kv_spec(config, jnp.bfloat16)


MODELS = {
    "Gemma 3 270M": Layers(18, 1, 256, 512, 6),
    "Gemma 3 1B": Layers(26, 1, 256, 512, 6),
    "Gemma 3 4B": Layers(34, 4, 256, 1024, 6),
    "Gemma 3 12B": Layers(48, 8, 256, 1024, 6),
    "Gemma 3 27B": Layers(62, 16, 128, 1024, 6),
    "Gemma 2 9B": Layers(42, 8, 256, 4096, 2),
    "gpt-oss 20B": Layers(24, 8, 64, 128, 2),
    "Mistral 7B v0.1": Layers(32, 8, 128, 4096, 0),
}
"""Of their published configs."""


@dataclasses.dataclass(frozen=True)
class Held:
    """Bytes of a sequence of ``length`` tokens.

    least: the sum over the layers of min(length, window). full: of length. held: at the end. most: after any step.
    within: during any step. pool: of the smallest pool that runs it. steps, pool_steps: how many it took, in a pool
    that never runs out and in that one.
    """

    model: str
    length: int
    groups: int
    layers_per_group: int
    least: int
    full: int
    held: int
    most: int
    within: int
    pool: int
    steps: int
    pool_steps: int


def run(spec: KVSpec, length: int, block_size: int, chunk: int, num_blocks: int
        ) -> list[tuple[int, int]]:
    """Compute a request of ``length`` tokens, the last ``OUTPUT`` of them generated; the blocks held during and after
    each step."""
    blocks = BlockManager(num_blocks, block_size, spec.windows)
    limits = SchedulerConfig(max_num_seqs=1, max_num_batched_tokens=chunk, max_model_len=length + 1)
    scheduler = Scheduler(limits, blocks)
    params = SamplingParams(temperature=0, max_tokens=OUTPUT + 1, ignore_eos=True, detokenize=False)
    scheduler.add(Request("0", range(length - OUTPUT), params, max_model_len=length + 1))
    held = []
    while (plan := scheduler.schedule()) is not None:
        during = blocks.stats().used_blocks
        scheduler.update(plan, [0] * len(plan.samplers))
        held.append((during, blocks.stats().used_blocks))
        if plan.preempted:
            raise RuntimeError("the only request was preempted")
        for sampler in plan.samplers:
            reason, stop_reason = check_stop(sampler.sequence, 0)
            if reason is not None:
                scheduler.finish(sampler.sequence, reason, stop_reason)
    return held


def measure(name: str, length: int, block_size: int, chunk: int) -> Held:
    """The figures of a model."""
    spec = MODELS[name].spec(length + 1)
    columns, nbytes = -(-(length + 1) // block_size), spec.block_bytes(block_size)
    ample = run(spec, length, block_size, chunk, len(spec.groups) * columns + 1)
    smallest = BlockManager(2, block_size, spec.windows).groups.blocks_for(length + 1)
    tight = run(spec, length, block_size, chunk, smallest + 1)
    return Held(
        model=name, length=length, groups=len(spec.groups), layers_per_group=spec.arrays_per_group,
        least=spec.context_bytes(length), full=spec.bytes_per_token * length,
        held=ample[-1][1] * nbytes, most=max(after for _, after in ample) * nbytes,
        within=max(during for during, _ in ample) * nbytes, pool=(smallest + 1) * nbytes,
        steps=len(ample), pool_steps=len(tight))


def report(results: Sequence[Held]) -> str:
    """The results as a table."""
    header = ("model", "groups x layers", "least, MiB", "all kept", "held", "most", "within a step", "smallest pool",
              "steps", "in that pool")
    return format_table(header, [
        (each.model, f"{each.groups} x {each.layers_per_group}", f"{each.least / 2**20:.1f}",
         *(f"{value / each.least:.3f}"
           for value in (each.full, each.held, each.most, each.within, each.pool)),
         each.steps, each.pool_steps) for each in results])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; 1 if a model holds, or needs, more than ``LIMIT``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=32768, help="tokens of the sequence (default: %(default)s)")
    parser.add_argument("--block-size", type=int, default=64, help="slots per block (default: %(default)s)")
    parser.add_argument("--max-num-batched-tokens", type=int, default=512, help="(default: %(default)s)")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    if chosen.length <= OUTPUT:
        parser.error(f"--length {chosen.length}: more than {OUTPUT}")
    results = [measure(name, chosen.length, chosen.block_size, chosen.max_num_batched_tokens)
               for name in chosen.models]
    machine = describe_machine()
    print(machine_line(machine))
    print(f"one sequence of {chosen.length:,} tokens, blocks of {chosen.block_size}, "
          f"{chosen.max_num_batched_tokens} tokens a step; in multiples of the least:\n\n" + report(results))
    missed = [each.model for each in results if max(each.held, each.pool) > LIMIT * each.least]
    print(f"\nheld, and the smallest pool, at most {LIMIT} of the least: "
          + ("MISSED by " + ", ".join(missed) if missed else "met"))
    write_json(chosen.json, {"machine": machine, "block_size": chosen.block_size,
                             "max_num_batched_tokens": chosen.max_num_batched_tokens,
                             "results": [dataclasses.asdict(each) for each in results]})
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
