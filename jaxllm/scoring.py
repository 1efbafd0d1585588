"""Log-likelihoods of continuations: how probable a model finds a text after another."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from typing import TYPE_CHECKING, Any

from jaxllm.errors import ParameterError
from jaxllm.interrupt import InterruptFlag
from jaxllm.outputs import OutputError, RequestOutput
from jaxllm.progress import Bar, open_bar
from jaxllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from jaxllm.llm import LLM
    from jaxllm.tokenization import Tokenizer

Text = str | Sequence[int]
"""Text, or the token ids of one."""


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedPair:
    """A context and its continuation as one sequence of token ids; the continuation begins at ``start``, ``>= 1``."""

    token_ids: tuple[int, ...]
    start: int

    @property
    def continuation_ids(self) -> tuple[int, ...]:
        """The tokens whose log-probabilities count."""
        return self.token_ids[self.start:]


@dataclasses.dataclass(frozen=True, slots=True)
class Score:
    """How probable a continuation is after its context.

    logprob: natural log of its probability, the sum of ``token_logprobs``; ``None`` with an error.
    num_tokens: its length in tokens.
    is_greedy: whether greedy sampling from the context gives just this continuation.
    token_ids, token_logprobs: its tokens, and the float32 log-softmax of the raw logits at each.
    error: why there is none; the other pairs have theirs.
    """

    logprob: float | None
    num_tokens: int = 0
    is_greedy: bool = False
    token_ids: tuple[int, ...] = ()
    token_logprobs: tuple[float, ...] = ()
    error: OutputError | None = None


_INTERRUPTED = Score(None, error=OutputError("KeyboardInterrupt", "scoring was ended before it came to this pair"))

_Pairs = list[tuple[int, EncodedPair]]
"""Encoded pairs, each with its place among those given."""


def encode_pair(tokenizer: Tokenizer | None, context: Text, continuation: Text) -> EncodedPair:
    """Encode a context and its continuation together, and say where the continuation begins.

    Both are texts or both token ids; ids are joined as they are. Texts are joined and encoded as one, with the special
    tokens that the tokenizer adds in front, so that the tokens are those of the whole text:

    - whitespace at the end of the context is moved to the beginning of the continuation, where most tokenizers have it
      (as in EleutherAI's lm-evaluation-harness);
    - a token that holds characters of both belongs to the continuation;
    - an empty context is the BOS token, or EOS where the model has no BOS;
    - EOS that the tokenizer adds at the end is left out.

    Raises ``ParameterError`` for an empty continuation, or an empty context that no token can stand for.
    """
    if isinstance(context, str) and isinstance(continuation, str):
        if tokenizer is None:
            raise ParameterError("context", context, "token ids, for an engine without a tokenizer")
        ids, start = _encode_texts(tokenizer, context, continuation)
    elif isinstance(context, str) or isinstance(continuation, str):
        raise ParameterError("continuation", continuation, "a text if the context is one, token ids if it is not")
    else:
        ids = _token_ids("context", context)
        start = len(ids)
        ids += _token_ids("continuation", continuation)
    if start == len(ids):
        raise ParameterError("continuation", continuation, "at least one token")
    if start == 0:
        ids.insert(0, _stand_in(tokenizer))
        start = 1
    return EncodedPair(tuple(ids), start)


def score(llm: LLM, contexts: Sequence[Text], continuations: Sequence[Text], *, use_tqdm: Bar = True) -> list[Score]:
    """The log-likelihood of each continuation after its context, in their order; see ``encode_pair``.

    A pair that cannot be scored, for instance one longer than ``max_model_len - 1`` tokens, carries its error and the
    others are scored. A context that several pairs have is computed once, where the prefix cache is on. After Ctrl-C
    the pairs that are left carry a ``KeyboardInterrupt``.

    use_tqdm: as in ``LLM.generate``; the bar counts pairs.
    """
    for name, texts in (("contexts", contexts), ("continuations", continuations)):
        if isinstance(texts, str | bytes | Mapping) or not hasattr(texts, "__getitem__"):
            raise ParameterError(name, texts, "a list, with as many contexts as continuations")
    if len(contexts) != len(continuations):
        raise ParameterError("continuations", f"a list of {len(continuations)}",
                             f"one for each of the {len(contexts)} contexts")
    contexts, continuations = list(contexts), list(continuations)
    scores = [_INTERRUPTED] * len(contexts)
    num_done, interrupt = 0, InterruptFlag()
    config = llm.engine.config
    groups = _encoded_by_context(llm.tokenizer, contexts, continuations, scores)
    with interrupt.guard(), contextlib.closing(
            open_bar(use_tqdm, total=len(contexts), desc="Scoring", unit="pair")) as bar:
        for pairs in _waves(groups, config.data_parallel_size * config.token_capacity // 2):
            prompts = [{"prompt_token_ids": list(pair.token_ids)} for _, pair in pairs]
            outputs = llm.generate(prompts, [_params(pair.start) for _, pair in pairs], use_tqdm=False)
            for (number, pair), output in zip(pairs, outputs, strict=True):
                scores[number] = _score_of(pair, output)
            if interrupt.is_set or any(scores[number] is _INTERRUPTED for number, _ in pairs):
                return scores
            num_done += len(pairs)
            bar.update(len(pairs))
        bar.update(len(contexts) - num_done)
    return scores


def _encoded_by_context(tokenizer: Tokenizer | None, contexts: Sequence[Text], continuations: Sequence[Text],
                        scores: list[Score]) -> Iterator[_Pairs]:
    """The pairs of each context, encoded when they are asked for; the scores of those that cannot be are their errors.
    """
    by_context: dict[Hashable, list[int]] = {}
    for number, context in enumerate(contexts):
        by_context.setdefault(_key(context), []).append(number)
    for numbers in by_context.values():
        group: _Pairs = []
        for number in numbers:
            try:
                group.append((number, encode_pair(tokenizer, contexts[number], continuations[number])))
            except ParameterError as error:
                scores[number] = _failed(OutputError(type(error).__name__, str(error), error.parameter))
        if group:
            yield group


def _key(context: Text) -> Hashable:
    """Equal for equal contexts."""
    if isinstance(context, str):
        return context
    try:
        found = tuple(context)
        hash(found)
    except TypeError:
        return None  # what is no context at all need not be told apart
    return found


def _waves(groups: Iterable[_Pairs], num_tokens: int) -> Iterator[_Pairs]:
    """Pairs to run at once, such that a context is in the cache when others want it.

    Of as many groups as take up ``num_tokens`` slots of the cache, first one pair each, then the others.
    """
    window: list[_Pairs] = []
    used = 0
    for group in groups:
        size = max(pair.start for _, pair in group) + sum(len(pair.continuation_ids) for _, pair in group)
        if window and used + size > num_tokens:
            yield from _first_and_others(window)
            window, used = [], 0
        window.append(group)
        used += size
    yield from _first_and_others(window)


def _first_and_others(groups: Sequence[_Pairs]) -> Iterator[_Pairs]:
    for pairs in ([group[0] for group in groups], [pair for group in groups for pair in group[1:]]):
        if pairs:
            yield pairs


def _params(start: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1, prompt_logprobs_start=start,
                          detokenize=False)


def _encode_texts(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], int]:
    boundary = len(context.rstrip())
    ids, spans = tokenizer.encode_with_spans(context + continuation)
    while spans and spans[-1] is None:
        spans.pop()
    del ids[len(spans):]
    ends = [0 if span is None else span[1] for span in spans]
    return ids, next((index for index, end in enumerate(ends) if end > boundary), len(ids))


def _token_ids(name: str, ids: Any) -> list[int]:
    """Ids as plain integers; what they may be is the engine's to check."""
    if isinstance(ids, bytes | Mapping | Set) or not hasattr(ids, "__iter__") or getattr(ids, "ndim", 1) == 0:
        raise ParameterError(name, ids, "a text or a list of token ids")
    found = list(ids)
    for token in found:
        if isinstance(token, bool) or not hasattr(token, "__index__"):
            raise ParameterError(name, token, "token ids are integers")
    return [token.__index__() for token in found]


def _stand_in(tokenizer: Tokenizer | None) -> int:
    """The token that an empty context is."""
    for token in () if tokenizer is None else (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return token
    raise ParameterError("context", "", "not empty: the model has neither BOS nor EOS to put in its place")


def _score_of(pair: EncodedPair, output: RequestOutput) -> Score:
    if output.error is not None:
        return _failed(output.error)
    lines = (output.prompt_logprobs or [])[pair.start:]
    if len(lines) != len(pair.continuation_ids):
        return _INTERRUPTED
    entries = [(line or {})[token] for token, line in zip(pair.continuation_ids, lines, strict=True)]
    logprobs = tuple(entry.logprob for entry in entries)
    return Score(
        logprob=sum(logprobs),
        num_tokens=len(logprobs),
        # With the most likely token asked for, a line of one entry is that of the most likely token.
        is_greedy=all(len(line or {}) == 1 for line in lines),
        token_ids=pair.continuation_ids,
        token_logprobs=logprobs,
    )


def _failed(error: OutputError) -> Score:
    return Score(logprob=None, error=error)
