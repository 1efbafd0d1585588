"""The pretend device with beam searches among the requests: it also says, for each row, what may come next."""

from __future__ import annotations

import numpy as np
from engine.fake_engine import EOS, VOCAB_SIZE, FakeEngine, extend_fingerprint, fingerprints

from jaxllm.engine.beam import BeamSelector, Ending
from jaxllm.engine.beam_group import BeamGroup
from jaxllm.engine.request import Request
from jaxllm.engine.stopping import check_stop
from jaxllm.sampling_params import SamplingParams
from jaxllm.speculative.verify import standing_tokens


def row_after(fingerprint):
    """The pretend model's (ids, log-probabilities) after a prefix, best first; with ties."""
    bits = extend_fingerprint(fingerprint, 77)
    logprobs = np.array([-0.25 * (1 + (bits >> (8 * token)) % 12) for token in range(VOCAB_SIZE)], np.float32)
    order = np.argsort(-logprobs, kind="stable")
    return order.astype(np.int32), logprobs[order]


def selector_for(request, width, **options):
    def ended(beam):
        return Ending("stop") if beam.token in request.stop_ids else None

    return BeamSelector(width, max_tokens=request.max_tokens, num_candidates=2 * width, ends=ended, **options)


def search_alone(request, width, **options):
    """The hypotheses, without any engine."""
    selector = selector_for(request, width, **options)
    start = fingerprints(request.prompt_token_ids)[-1]
    while not selector.done:
        rows = []
        for beam in selector.beams:
            fingerprint = start
            for token in beam.token_ids:
                fingerprint = extend_fingerprint(fingerprint, token)
            rows.append(row_after(fingerprint))
        selector.advance(*map(np.stack, zip(*rows, strict=True)))
    return described(selector)


def described(selector):
    return [(found.beam.token_ids, found.score, found.ending) for found in selector.finished]


class BeamFakeEngine(FakeEngine):
    """``FakeEngine`` that takes beam searches too."""

    def __init__(self, sizes):
        super().__init__(sizes)
        self.searches = {}
        self._eras_of_forks = {}
        self.num_beam_forks = 0
        self.num_rested = 0

    def search(self, prompt, width, *, max_tokens=None, ignore_eos=False, priority=0, cache_salt=None, **options):
        """Make and add a beam search."""
        request = Request(
            f"beams-{len(self.requests) + len(self.searches)}", prompt,
            SamplingParams(n=width, temperature=0, max_tokens=max_tokens, ignore_eos=ignore_eos, priority=priority,
                           cache_salt=cache_salt),
            max_model_len=self.sizes.max_model_len, eos_token_ids=[EOS])
        request.beams = BeamGroup(request, selector_for(request, width, **options), VOCAB_SIZE)
        self.searches[request] = options
        self.scheduler.add(request)
        return request

    def _check_plan(self, plan):
        super()._check_plan(plan)
        # What a beam goes on from may date from before a reset.
        self._era_of |= self._eras_of_forks
        self._eras_of_forks = {}

    def _sample(self, sequence, fingerprint):
        return super()._sample(sequence, fingerprint) if sequence.request.beams is None else row_after(fingerprint)

    def _take(self, plan, tokens):
        self.num_surplus += sum(sequence.finished for sequence in plan.sequences)
        self.scheduler.update(plan, [0 if isinstance(token, tuple) else token for token in tokens])
        standing = standing_tokens(plan, tokens)
        for sampler, token in zip(plan.samplers, tokens, strict=True):
            sequence = sampler.sequence
            if sequence.finished or sampler.ahead >= standing.get(sequence, 1):
                continue
            if sequence.request.beams is not None:
                self._add_row(sequence, token)
                continue
            if sampler.ahead:
                self.scheduler.extend(sequence, token)
            reason, stop_reason = check_stop(sequence, token)
            if reason is not None:
                self.scheduler.finish(sequence, reason, stop_reason)
        self.scheduler.check_integrity()

    def _add_row(self, sequence, row):
        beams = sequence.request.beams
        beams.add_row(sequence, *row)
        if not beams.ready:
            return
        succession = beams.advance()
        if beams.selector.done:
            for each in sequence.request.sequences:
                self.scheduler.finish(each, "stop")
        else:
            self.scheduler.continue_beams(succession)
            for parent, child, _ in succession.forks:
                if child.slot is not None:
                    self.num_beam_forks += 1
                    self._eras_of_forks[child] = self._era_of[parent]

    def finish_all(self):
        super().finish_all()
        for request, options in self.searches.items():
            assert request.finished
            if request.sequences[0].finish_reason == "stop":
                assert request.beams.selector.done
                assert described(request.beams.selector) == search_alone(request, len(request.sequences), **options)

    def _count(self, plan):
        super()._count(plan)
        self.num_rested += sum(
            not victim.finished and victim.request.beams is not None and victim.request.beams.has_row(victim)
            for victim in plan.preempted)
