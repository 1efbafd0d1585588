"""The kinds of steps that ``step_profile.py`` looks at, and engines made ready to run them."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from offline import sampling

from jaxllm.errors import ParameterError

if TYPE_CHECKING:
    from jaxllm import LLM

WARM_STEPS = 4
"""Steps before the recorded ones, once every request decodes."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A kind of step: one token for each of ``rows`` requests with about ``context`` tokens, or ``chunk`` prompt tokens
    of one request after ``context`` others."""

    name: str
    rows: int
    context: int
    chunk: int | None = None


def parse_case(text: str) -> Case:
    """A case from "decode 64x200" or "prefill 512@3584"."""
    kind, _, sizes = text.strip().partition(" ")
    try:
        if kind == "decode":
            rows, context = map(int, sizes.split("x"))
            case = Case(text.strip(), rows, context)
        else:
            chunk, context = map(int, sizes.split("@"))
            case = Case(text.strip(), 1, context, chunk)
    except ValueError:
        kind = ""
    if kind not in ("decode", "prefill") or min(case.rows, case.context, case.chunk or 1) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: such as 'decode 64x200' or 'prefill 512@3584'")
    return case


def cases_of(text: str) -> list[Case]:
    """Cases separated by commas."""
    return [parse_case(part) for part in text.split(",")]


@contextlib.contextmanager
def decoding(llm: LLM, case: Case, steps: int) -> Iterator[None]:
    """Requests that all decode, with about the case's context in the middle of the recorded steps."""
    engine = llm.engine
    length = max(1, case.context - WARM_STEPS - steps // 2)
    budget = engine.config.max_num_batched_tokens
    if case.rows > min(budget, engine.config.max_num_seqs):
        raise ParameterError("cases", case.name, f"at most {min(budget, engine.config.max_num_seqs)} requests")
    # While some prompts are still computed, the requests before them decode.
    most = case.rows * length // (budget - case.rows + 1) + case.rows + WARM_STEPS + steps + 8
    prompts = np.random.default_rng(0).integers(0, engine.config.vocab_size, (case.rows, length)).tolist()
    names = [engine.add_request(prompt, sampling(min(most, engine.config.max_model_len - length)))
             for prompt in prompts]
    try:
        warm = 0
        while warm < WARM_STEPS:
            if not engine.has_unfinished():
                raise ParameterError("cases", case.name, "contexts in which all requests can decode together")
            before = llm.stats()
            engine.step()
            after = llm.stats()
            full = (after.num_computed_tokens - before.num_computed_tokens
                    == after.num_generated_tokens - before.num_generated_tokens == case.rows)
            warm = warm + 1 if full else 0
        yield
    finally:
        for name in names:
            engine.abort(name)


@contextlib.contextmanager
def prefilling(llm: LLM, case: Case, steps: int) -> Iterator[None]:
    """Requests that have a prefix in the cache and as many tokens left as a step takes."""
    engine = llm.engine
    chunk = engine.config.max_num_batched_tokens
    if case.chunk != chunk or case.context % engine.config.block_size:
        raise ParameterError("cases", case.name, f"chunks of max_num_batched_tokens={chunk} tokens after a multiple of "
                                                 f"block_size={engine.config.block_size}")
    random = np.random.default_rng(0)
    prefix = random.integers(0, engine.config.vocab_size, case.context).tolist()
    names = []
    try:
        for count in (1, steps + 4):
            for _ in range(count):
                prompt = prefix + random.integers(0, engine.config.vocab_size, chunk).tolist()
                names.append(engine.add_request(prompt, sampling(1)))
            advance(llm, 1)
            while count == 1 and engine.has_unfinished():
                engine.step()
        yield
    finally:
        for name in names:
            engine.abort(name)


def advance(llm: LLM, steps: int) -> None:
    """Run so many steps."""
    for _ in range(steps):
        llm.engine.step()
