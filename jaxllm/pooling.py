"""Embeddings and rewards: what a decoder makes of a whole text, from the hidden state of its last token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from jaxllm.checks import check_bool, check_integer
from jaxllm.errors import ParameterError
from jaxllm.inputs import prompt_list
from jaxllm.outputs import OutputError, RequestOutput
from jaxllm.progress import Bar
from jaxllm.request_batch import complete
from jaxllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from jaxllm.engine.core import Engine


class HiddenStateParams(SamplingParams):
    """Sampling parameters of requests that are about their prompt's last hidden state; a token is sampled, for nothing.
    """

    reports_hidden_state: ClassVar[bool] = True


@dataclasses.dataclass(slots=True)
class Embedding:
    """embedding: one number for each dimension."""

    embedding: list[float]


@dataclasses.dataclass(slots=True)
class Reward:
    """data: one number for each label of the model's head; reward models mostly have one."""

    data: list[float]


@dataclasses.dataclass(slots=True)
class EmbeddingRequestOutput:
    """A prompt's embedding. outputs: ``None`` with an error. num_cached_tokens: found in the prefix cache."""

    request_id: str
    outputs: Embedding | None
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    error: OutputError | None = None


@dataclasses.dataclass(slots=True)
class RewardRequestOutput:
    """A prompt's reward. outputs: ``None`` with an error. num_cached_tokens: found in the prefix cache."""

    request_id: str
    outputs: Reward | None
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    error: OutputError | None = None


def embed(engine: Engine, width: int, prompts: Any, *, normalize: bool = True, dimensions: int | None = None,
          truncate_prompt_tokens: int | None = None, use_tqdm: Bar = True, raise_on_error: bool = False
          ) -> list[EmbeddingRequestOutput]:
    """The embeddings of prompts; see ``LLM.embed``. width: the model's."""
    check_bool("normalize", normalize)
    if dimensions is not None:
        dimensions = check_integer("dimensions", dimensions, 1, width)
    outputs = _hidden_states(engine, prompts, truncate_prompt_tokens, use_tqdm, raise_on_error)
    return [EmbeddingRequestOutput(
        output.request_id,
        None if output.hidden_state is None else Embedding(_embedding(output.hidden_state[:dimensions], normalize)),
        output.prompt_token_ids, output.num_cached_tokens, output.error) for output in outputs]


def reward(engine: Engine, head: np.ndarray | None, prompts: Any, *, truncate_prompt_tokens: int | None = None,
           use_tqdm: Bar = True, raise_on_error: bool = False) -> list[RewardRequestOutput]:
    """What a head makes of prompts; see ``LLM.reward``. head: float64 [labels, D]."""
    if head is None:
        raise ParameterError("model", "a model without a score head", "one whose architecture ends in "
                             "ForSequenceClassification")
    outputs = _hidden_states(engine, prompts, truncate_prompt_tokens, use_tqdm, raise_on_error)
    return [RewardRequestOutput(
        output.request_id,
        # Row by row and in float64, so that no result depends on the others.
        None if output.hidden_state is None else Reward((head @ output.hidden_state.astype(np.float64)).tolist()),
        output.prompt_token_ids, output.num_cached_tokens, output.error) for output in outputs]


def _hidden_states(engine: Engine, prompts: Any, truncate: int | None, use_tqdm: Bar, raise_on_error: bool
                   ) -> Sequence[RequestOutput]:
    prompts = prompt_list(prompts)
    params = HiddenStateParams(temperature=0.0, max_tokens=1, detokenize=False, truncate_prompt_tokens=truncate)
    return complete(engine, prompts, [params] * len(prompts), use_tqdm=use_tqdm, raise_on_error=raise_on_error)


def _embedding(state: np.ndarray, normalize: bool) -> list[float]:
    wide = state.astype(np.float64)
    norm = np.sqrt(np.square(wide).sum())
    return (wide / max(norm, 1e-12) if normalize else wide).astype(np.float32).tolist()
