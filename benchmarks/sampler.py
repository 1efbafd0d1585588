"""What does choosing tokens cost, for each kind of request?

Times the sampler alone, compiled as in the engine: from logits on the device to tokens, and to log-probabilities where
asked for, with every row of the batch asking for the same. The logits are made like a small language model's: the
tokens' probabilities fall roughly as one over their rank.
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
import numpy as np
from harness import describe_machine, format_table, machine_line, write_json

from jaxllm import SamplingParams
from jaxllm.sampling import (
    ALL_ALLOWED,
    RowTable,
    Variant,
    init_state,
    mask_words,
    needs_state,
    sample,
    set_slot,
    slot_row,
    variant_of,
)

PROMPT_LENGTH = 64


@dataclasses.dataclass(frozen=True)
class Case:
    """A kind of request. masked: under a mask that the host makes for each token, as grammars are."""

    name: str
    params: SamplingParams
    masked: bool = False

    @property
    def variant(self) -> Variant:
        """The form of the sampler that serves it."""
        return Variant.MASKED if self.masked else variant_of(self.params)


CASES = (
    Case("greedy", SamplingParams(temperature=0)),
    Case("greedy + logprobs", SamplingParams(temperature=0, logprobs=5)),
    Case("temperature", SamplingParams()),
    Case("top-p", SamplingParams(top_p=0.95)),
    Case("top-k", SamplingParams(top_k=40)),
    Case("top-k of 1000", SamplingParams(top_k=1000)),
    Case("min-p", SamplingParams(min_p=0.05)),
    Case("all filters", SamplingParams(temperature=0.7, top_k=40, top_p=0.95, min_p=0.05)),
    Case("top-p + logprobs", SamplingParams(top_p=0.95, logprobs=5)),
    Case("top-p + processed", SamplingParams(top_p=0.95, logprobs=5, logprobs_mode="processed_logprobs")),
    Case("penalties", SamplingParams(presence_penalty=0.5, repetition_penalty=1.1)),
    Case("masked", SamplingParams(), masked=True),
)


def language_logits(rows: int, vocab_size: int, seed: int = 0) -> np.ndarray:
    """Logits whose probabilities fall as a power of a token's rank, with noise; each row has an order of its own."""
    rng = np.random.default_rng(seed)
    by_rank = -1.2 * np.log(np.arange(1, vocab_size + 1, dtype=np.float32))
    logits = np.stack([by_rank[rng.permutation(vocab_size)] for _ in range(rows)])
    return (logits + rng.normal(0, 0.5, logits.shape)).astype(np.float32)


class Step:
    """One case's compiled sampler with its arguments."""

    def __init__(self, case: Case, logits: jax.Array) -> None:
        count, vocab_size = logits.shape
        table = RowTable(count)
        state = init_state(count, vocab_size) if case.variant >= Variant.FULL else None
        for slot in range(count):
            table.set_slot(slot, case.params, slot, 0, PROMPT_LENGTH,
                           processed=case.params.logprobs_mode == "processed_logprobs")
            if state is not None and needs_state(case.params):
                prompt = np.random.default_rng(slot).integers(vocab_size, size=PROMPT_LENGTH)
                state = set_slot(state, np.int32(slot), slot_row(case.params, prompt, [], [], vocab_size))
        rows = table.rows(np.arange(count), np.full(count, PROMPT_LENGTH, np.int32), count)
        mask = np.full((count, mask_words(vocab_size)), ALL_ALLOWED, np.uint32) if case.masked else None
        function = functools.partial(sample, variant=case.variant)
        self._run = jax.jit(function, donate_argnums=2).lower(logits, rows, state, mask=mask).compile()
        self._logits, self._rows, self._state, self._mask = logits, rows, state, mask

    def __call__(self) -> float:
        """Run once; seconds."""
        started = time.perf_counter()
        self._state, output = self._run(self._logits, self._rows, self._state, mask=self._mask)
        jax.block_until_ready(output)
        return time.perf_counter() - started


def milliseconds(cases: Sequence[Case], rows: int, vocab_size: int, repeat: int) -> dict[str, float]:
    """Medians, taken in turn so that a drifting machine treats all alike."""
    logits = jax.device_put(language_logits(rows, vocab_size))
    steps = {case.name: Step(case, logits) for case in cases}
    for step in steps.values():
        step()
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeat):
        for name, step in steps.items():
            taken[name].append(step())
    return {name: 1e3 * statistics.median(seconds) for name, seconds in taken.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="8,64,128", help="batch sizes (default: %(default)s)")
    parser.add_argument("--vocab-size", type=int, default=49_152, help="(default: %(default)s)")
    parser.add_argument("--cases", default=",".join(case.name for case in CASES),
                        help="which cases, separated by commas (default: all)")
    parser.add_argument("--repeat", type=int, default=20, help="timed runs of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    chosen = parser.parse_args(arguments)
    known = {case.name: case for case in CASES}
    names = chosen.cases.split(",")
    if unknown := [name for name in names if name not in known]:
        parser.error(f"--cases: no case {unknown[0]!r}; there are {'; '.join(known)}")
    machine = describe_machine()
    sizes = [int(text) for text in chosen.rows.split(",")]
    results: dict[int, dict[str, float]] = {}
    for rows in sizes:
        results[rows] = milliseconds([known[name] for name in names], rows, chosen.vocab_size, chosen.repeat)
    print(f"{machine_line(machine)}\n{chosen.vocab_size} tokens in the vocabulary; ms per step, medians of "
          f"{chosen.repeat}\n")
    print(format_table(("request", "variant", *(f"{rows} rows" for rows in sizes)), (
        (name, known[name].variant.name.lower(), *(f"{results[rows][name]:.2f}" for rows in sizes))
        for name in names)))
    details: dict[str, Any] = {"machine": machine, "vocab_size": chosen.vocab_size, "repeat": chosen.repeat}
    write_json(chosen.json, {**details, "milliseconds": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
