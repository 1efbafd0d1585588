"""Which of a step's sampled tokens stand: those whose drafts the sampler chose itself.

The token of a position is sampled from the logits that follow the tokens before it, with that position's own noise.
Where those were drafts, and each is the token that the sampler has chosen for its place, it is the very token, to the
bit, that it would have been without; else it is not used. So nothing depends on what was guessed.
"""

from __future__ import annotations

from collections.abc import Sequence as Ordered

from jaxllm.engine.plan import StepPlan
from jaxllm.engine.request import Sequence
from jaxllm.sampling import NO_TOKEN


def num_standing(sampled: Ordered[int], drafts: Ordered[int]) -> int:
    """How many of a sequence's sampled tokens stand, from the first on, which always does.

    sampled: one more than ``drafts``: the token after the last certain one, then one after each draft. Where none could
    be sampled after a draft (``NO_TOKEN``), that is left for the next step.
    """
    standing = 1
    while standing < len(sampled) and sampled[standing - 1] == drafts[standing - 1] and sampled[standing] != NO_TOKEN:
        standing += 1
    return standing


def standing_tokens(plan: StepPlan, token_ids: Ordered[int]) -> dict[Sequence, int]:
    """``num_standing`` of each sequence that has drafts in a plan. token_ids: one for each of its samplers."""
    if not plan.drafts:
        return {}
    sampled: dict[Sequence, list[int]] = {sequence: [] for sequence in plan.drafts}
    for sequence, token in zip(plan.sampled, token_ids, strict=True):
        if sequence in sampled:
            sampled[sequence].append(token)
    return {sequence: num_standing(sampled[sequence], drafts.tolist()) for sequence, drafts in plan.drafts.items()}
