"""From options to a running ``LLM``, in the order that reaches the first token soonest."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Iterator
from typing import TYPE_CHECKING

from jaxllm.cli.options import EngineOptions, ModelOptions, SamplingOptions
from jaxllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from jaxllm.llm import LLM
    from jaxllm.tokenization import Tokenizer
    from jaxllm.weights import ModelSource

FEW_SEQS = 8


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collections: a start makes a million objects; looking for garbage among them takes a sixth of it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """A model whose headers and tokenizer are read, and whose weights are not."""

    source: ModelSource
    tokenizer: Tokenizer

    def sampling_params(self, options: SamplingOptions, n: int = 1) -> SamplingParams:
        """What the options ask for, on top of what the model recommends."""
        from jaxllm.generation_config import sampling_defaults

        return options.params(sampling_defaults(self.source), self.source.generation_config, n)


def open_checkpoint(options: ModelOptions) -> Checkpoint:
    """Find the model and read its headers and tokenizer. Nothing here needs JAX, so that errors come at once."""
    from jaxllm.tokenization.loading import load_tokenizer
    from jaxllm.weights import GGUFSource, default_model, resolve

    source = resolve(options.model or default_model(), options.revision)
    of = source if options.tokenizer is None else resolve(options.tokenizer, download_weights=False)
    return Checkpoint(source, load_tokenizer(of.metadata if isinstance(of, GGUFSource) else of.path))


def enough_seqs(wanted: int) -> int | None:
    """``max_num_seqs`` for so many samples: 1, ``FEW_SEQS`` or the platform's; each number has programs of its own."""
    return 1 if wanted == 1 else FEW_SEQS if wanted <= FEW_SEQS else None


def start(
    checkpoint: Checkpoint, model: ModelOptions, engine: EngineOptions, *, num_seqs: int, num_tokens: int,
    params: SamplingParams,
) -> LLM:
    """Load the weights and compile what the first step needs.

    num_seqs: samples that will be wanted at once. num_tokens: tokens of the first prompts.
    """
    from jaxllm.first_step import FirstStep
    from jaxllm.llm import LLM

    sizes = engine.given()
    if sizes["max_num_seqs"] is None:
        sizes["max_num_seqs"] = enough_seqs(num_seqs)
    return LLM(checkpoint.source, tokenizer=checkpoint.tokenizer, dtype=model.dtype, quantization=model.quantization,
               first_step=FirstStep(num_tokens, params), **sizes)
