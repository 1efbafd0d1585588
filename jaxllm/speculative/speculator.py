"""``Speculator``: decides for each step which sequences guess ahead, and how far."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Ordered

import numpy as np

from jaxllm.engine.plan import Drafts
from jaxllm.engine.request import Request, Sequence
from jaxllm.sampling import needs_penalties, needs_vocab_logprobs
from jaxllm.speculative.acceptance import Acceptance
from jaxllm.speculative.config import SpeculativeConfig
from jaxllm.speculative.cost import LEAST_GAIN, StepCost, choose
from jaxllm.speculative.ngram import NgramIndex, PromptIndex

OVERLAP_GAIN = 0.1
"""By how much guessing must be expected to speed steps up where it keeps the host from planning one ahead."""


class Lookahead:
    """What is known of one sequence: its n-grams, and how often they foretold it. Lives as long as the sequence."""

    __slots__ = ("acceptance", "index")

    def __init__(self, prompt: PromptIndex) -> None:
        self.index = NgramIndex(prompt)
        self.acceptance = Acceptance()

    def catch_up(self, tokens: np.ndarray) -> None:
        """Take in the tokens that are new since the last call, scoring what would have been guessed for each."""
        index = self.index
        for position in range(index.num_tokens, len(tokens)):
            token = int(tokens[position])
            right = index.place is not None and int(tokens[index.place]) == token
            self.acceptance.record(index.matched, right=right)
            index.append(token, guessed=right)


class Speculator:
    """Drafts for the sequences of a step: only as many as are expected to pay.

    A sequence's guesses depend on its own tokens alone, and how many are computed on how many sequences run beside it;
    its tokens depend on neither.
    """

    def __init__(self, config: SpeculativeConfig, cost: StepCost) -> None:
        self.config = config
        self._cost = cost

    def waits(self, running: Ordered[Sequence], budget: int) -> bool:
        """Whether to plan the next step only when the tokens that are pending are known, because guessing from them is
        expected to bring more than planning ahead does."""
        if not any(sequence.num_pending for sequence in running):
            return False
        num_tokens = min(sum(sequence.target - sequence.num_computed for sequence in running), budget)
        room = self._room(max(num_tokens, len(running)), len(running), budget)
        gains: list[float] = []
        for sequence in running if room else ():
            share = self._lookahead(sequence).acceptance.share if can_guess(sequence) else 0.0
            chance, most = share, min(self.config.num_speculative_tokens, _left(sequence))
            while chance >= LEAST_GAIN and most > 0:
                gains.append(chance)
                chance, most = chance * share, most - 1
        return bool(gains) and choose(sorted(gains, reverse=True), len(running), room).speedup > 1.0 + OVERLAP_GAIN

    def draft(self, sequences: Iterable[Sequence], num_tokens: int, num_rows: int, budget: int,
              limit: Callable[[Sequence], int]) -> Drafts:
        """What to guess in a step.

        sequences: those that the step samples from. num_tokens, num_rows: what it computes and samples without drafts.
        budget: the most tokens that it may compute. limit: how many drafts the blocks of a sequence have room for.
        """
        room = self._room(num_tokens, num_rows, budget)
        guessing: list[Sequence] = []
        gains: list[tuple[float, int]] = []
        for sequence in sequences if room else ():
            if sequence.num_pending or not can_guess(sequence):
                continue
            ahead = self._lookahead(sequence)
            if ahead.index.place is None:
                continue
            most = min(self.config.num_speculative_tokens, room[-1][0], _left(sequence), limit(sequence))
            if most > 0:
                gains += [(-gain, len(guessing)) for gain in ahead.acceptance.gains(ahead.index.matched, most)]
                guessing.append(sequence)
        if not guessing:
            return {}
        gains.sort()
        count = choose([-gain for gain, _ in gains], num_rows, room).number
        counts = np.bincount([number for _, number in gains[:count]], minlength=len(guessing)).tolist()
        return {sequence: self._lookahead(sequence).index.guess(sequence.token_ids, number)
                for sequence, number in zip(guessing, counts, strict=True) if number}

    def _room(self, num_tokens: int, num_rows: int, budget: int) -> list[tuple[int, float]]:
        """As ``StepCost.room``; empty where not even guesses that are all right would pay."""
        room = self._cost.room(num_tokens, num_rows, budget)
        return room if choose([1.0] * room[-1][0], num_rows, room).number else []

    def _lookahead(self, sequence: Sequence) -> Lookahead:
        if sequence.lookahead is None:
            sequence.lookahead = Lookahead(self._prompt_index(sequence.request))
        sequence.lookahead.catch_up(sequence.token_ids)
        return sequence.lookahead

    def _prompt_index(self, request: Request) -> PromptIndex:
        if request.prompt_index is None:
            request.prompt_index = PromptIndex(
                request.prompt_token_ids, self.config.prompt_lookup_max, self.config.prompt_lookup_min)
        return request.prompt_index


def can_guess(sequence: Sequence) -> bool:
    """Whether a sequence's next tokens can be sampled before the ones between are certain.

    Not where the sampler or the host keeps account of every token: penalties, logits processors, grammars, bad words
    of several tokens, beams. Nor where rows are dear: log-probabilities of the whole vocabulary.
    """
    request, params = sequence.request, sequence.params
    return (
        request.beams is None
        and sequence.constraint is None
        and sequence.num_output > 0
        and not needs_penalties(params)
        and not params.logits_processors
        and not needs_vocab_logprobs(params)
    )


def _left(sequence: Sequence) -> int:
    """How many drafts it can use: of its last token nothing follows."""
    return sequence.request.max_tokens - sequence.num_output - 1
