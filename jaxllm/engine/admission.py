"""``Admission``: from what a user asks to a ``Request`` that the engine can run, or an error that says why not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from jaxllm.config import EngineConfig
from jaxllm.engine.constraints import Constraints, Words, bad_word_tokens
from jaxllm.engine.prompts import Prompt, encode_prompt
from jaxllm.engine.request import Request
from jaxllm.errors import ParameterError
from jaxllm.sampling import validate_token_ids
from jaxllm.sampling_params import SamplingParams
from jaxllm.tokenization import Tokenizer

if TYPE_CHECKING:
    from jaxllm.structured import GrammarCompiler


class Admission:
    """The checks that need the engine's sizes or its tokenizer. Safe to use from several threads."""

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer | None, eos_token_ids: frozenset[int]) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.eos_token_ids = eos_token_ids
        self._bad_word_tokens = functools.lru_cache(64)(bad_word_tokens)

    def prepare(self, prompt: Prompt, params: SamplingParams) -> Callable[[str, int | None], Request]:
        """What makes the request, given its id and the seed to use if it brings none; it may yet raise for the prompt.

        Raises ``ParameterError`` for parameters that this engine can never honour. Compiles the grammar.
        """
        text, token_ids = encode_prompt(prompt, self.tokenizer)
        self._check(params)
        token_ids, constraints = self._truncated(token_ids, params), self._constraints(params)

        def make(request_id: str, default_seed: int | None) -> Request:
            return Request(
                request_id,
                token_ids,
                params,
                max_model_len=self.config.max_model_len,
                prompt=text,
                eos_token_ids=self.eos_token_ids,
                vocab_size=self.config.vocab_size,
                default_seed=default_seed,
                logprobs_mode=params.logprobs_mode or self.config.logprobs_mode,
                constraints=constraints,
            )

        return make

    def _check(self, params: SamplingParams) -> None:
        validate_token_ids(params, self.config.vocab_size, max_logprobs=self.config.max_logprobs)
        for name in ("stop", "bad_words", "structured_outputs"):
            if getattr(params, name) and self.tokenizer is None:
                raise ParameterError(name, getattr(params, name), "needs a tokenizer, which this engine does not have")
        if params.priority and self.config.scheduling_policy != "priority":
            raise ParameterError("priority", params.priority, "0, unless the engine has scheduling_policy='priority'")
        for processor in params.logits_processors or ():
            if processor not in self.config.processor_names:
                known = ", ".join(map(repr, self.config.processor_names)) or "none"
                raise ParameterError("logits_processors", processor, f"the engine's processors are: {known}")

    def _truncated(self, token_ids: Sequence[int] | np.ndarray, params: SamplingParams) -> Sequence[int] | np.ndarray:
        wanted = params.truncate_prompt_tokens
        if wanted is None:
            return token_ids
        if wanted == -1:
            wanted = self.config.max_model_len - (params.max_tokens or 1)
            if wanted < 1:
                raise ParameterError("max_tokens", params.max_tokens, "with truncate_prompt_tokens=-1, less than "
                                     f"max_model_len={self.config.max_model_len}")
        return token_ids[-wanted:]

    def _constraints(self, params: SamplingParams) -> Constraints:
        grammar = None
        if params.structured_outputs is not None:
            grammar = self._grammars.compile(params.structured_outputs)
        banned_ids: tuple[int, ...] = ()
        bad_words: Words = ()
        if params.bad_words and self.tokenizer is not None:
            banned_ids, bad_words = self._bad_word_tokens(tuple(params.bad_words), self.tokenizer)
        return Constraints(self.config.vocab_size, grammar, banned_ids, bad_words, params.skip_special_tokens)

    @functools.cached_property
    def _grammars(self) -> GrammarCompiler:
        from jaxllm.structured import GrammarCompiler  # loads the grammar library

        if self.tokenizer is None:
            raise ParameterError("structured_outputs", None, "needs a tokenizer, which this engine does not have")
        return GrammarCompiler(self.tokenizer, self.config.vocab_size, self.eos_token_ids)
