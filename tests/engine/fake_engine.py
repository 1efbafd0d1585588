"""A scheduler driving a pretend device, which sees nothing but step plans and whose arithmetic shows every mix-up.

The device's "keys and values" for a token are a fingerprint of the whole prefix that ends with it, computed from the
fingerprint it reads, through its own block table, at the position before. So any error in tables, copies, forks, prefix
sharing or preemption changes fingerprints and with them the sampled tokens. After each step every row's context is
compared with the fingerprints of its true tokens.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from jaxllm.engine.block_groups import BlockGroups
from jaxllm.engine.block_manager import BlockManager
from jaxllm.engine.limits import Policy, SchedulerConfig
from jaxllm.engine.plan import Drafts, StepPlan
from jaxllm.engine.request import Request, Sequence, SequenceStatus
from jaxllm.engine.scheduler import Scheduler
from jaxllm.engine.stopping import check_stop
from jaxllm.sampling_params import SamplingParams
from jaxllm.speculative.verify import standing_tokens

VOCAB_SIZE = 5
EOS = 4
_MASK = 2**64 - 1


def extend_fingerprint(fingerprint: int, token: int) -> int:
    """The fingerprint of a prefix with one more token."""
    mixed = ((fingerprint ^ (token + 1)) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & _MASK
    return mixed ^ (mixed >> 29)


def fingerprints(tokens: np.ndarray) -> list[int]:
    """The fingerprint of every prefix."""
    result, fingerprint = [], 0
    for token in tokens.tolist():
        fingerprint = extend_fingerprint(fingerprint, token)
        result.append(fingerprint)
    return result


def next_token(fingerprint: int, seed: int, sample_index: int) -> int:
    """What the pretend model samples after a prefix; end of sequence one time in 16."""
    noise = extend_fingerprint(extend_fingerprint(fingerprint, seed), sample_index) >> 32
    return EOS if noise % 16 == 0 else (noise >> 8) % EOS


def answer_alone(request: Request, index: int) -> list[int]:
    """The output of one sample, without any engine."""
    fingerprint, output = fingerprints(request.prompt_token_ids)[-1], []
    while True:
        token = next_token(fingerprint, request.seed, index)
        output.append(token)
        fingerprint = extend_fingerprint(fingerprint, token)
        if (token == EOS and not request.params.ignore_eos) or len(output) == request.max_tokens:
            return output


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The dimensions of an engine to try."""

    num_blocks: int = 14
    block_size: int = 4
    windows: tuple[int | None, ...] = (None,)
    num_swap_blocks: int = 0
    enable_prefix_caching: bool = True
    max_num_seqs: int = 4
    max_num_batched_tokens: int = 8
    max_model_len: int = 40
    policy: Policy = "fcfs"
    overlap: bool = False
    guesses: bool = False
    num_stages: int = 1


def blocks_for_windows(num_blocks: int, sizes: Sizes) -> int:
    """As many blocks for the groups of ``sizes`` as ``num_blocks`` are for a single one of full attention."""
    groups = BlockGroups(sizes.windows, sizes.block_size)
    each, one = groups.blocks_for(sizes.max_model_len), groups.columns(sizes.max_model_len)
    return -(-(num_blocks - 1) * each // one) + 1


class RandomGuesses:
    """In place of ``Speculator``: guesses any number of tokens, some of them right; now and then it wants to wait."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self._answers: dict[Sequence, list[int]] = {}

    def waits(self, running: list[Sequence], budget: int) -> bool:
        return any(sequence.num_pending for sequence in running) and self._rng.random() < 0.4

    def draft(self, sequences: list[Sequence], num_tokens: int, num_rows: int, budget: int,
              limit: Callable[[Sequence], int]) -> Drafts:
        found: Drafts = {}
        for sequence in sequences:
            if sequence.num_pending or not sequence.num_output or sequence.request.beams is not None:
                continue
            left = sequence.request.max_tokens - sequence.num_output - 1
            count = min(int(self._rng.integers(8)), left, budget - num_tokens, limit(sequence))
            if sequence not in self._answers:
                self._answers[sequence] = answer_alone(sequence.request, sequence.index)
            # The answer ends where the sample will: whatever is guessed beyond, nothing comes of it.
            answer = [*self._answers[sequence][sequence.num_output:], *[0] * 8]
            tokens = np.array(answer[:max(count, 0)], np.int32)
            wrong = self._rng.random(len(tokens)) < 0.2
            tokens[wrong] = self._rng.integers(0, VOCAB_SIZE, wrong.sum())
            if len(tokens):
                found[sequence] = tokens
                num_tokens += len(tokens)
        return found


class FakeEngine:
    """The loop of an engine: schedule, pretend to run, update, stop; with every check on.

    With ``overlap`` the outcome of a step is withheld until the next one is planned and has run; with ``num_stages``,
    until so many more are, and what a step is fed was sampled so many plans before it.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.blocks = BlockManager(
            sizes.num_blocks, sizes.block_size, sizes.windows, enable_prefix_caching=sizes.enable_prefix_caching,
            num_swap_blocks=sizes.num_swap_blocks,
        )
        limits = SchedulerConfig(
            max_num_seqs=sizes.max_num_seqs,
            max_num_batched_tokens=sizes.max_num_batched_tokens,
            max_model_len=sizes.max_model_len,
            policy=sizes.policy,
            num_stages=sizes.num_stages,
        )
        self.scheduler = Scheduler(limits, self.blocks, RandomGuesses() if sizes.guesses else None)
        self.requests: list[Request] = []
        self.num_steps = 0
        self.num_preemptions = 0
        self.num_forks = 0
        self.num_copies = 0
        self.num_swapped_out = 0
        self.num_swapped_in = 0
        self.num_computed = 0
        self.num_fed = 0
        self.num_surplus = 0
        self.num_guessed = 0
        self.num_right = 0
        # The device. Unwritten memory holds a value that no prefix has.
        shape = (sizes.num_blocks, sizes.block_size)
        self._content = np.full(shape, 0xDEAD, np.uint64)
        self._group = np.full(shape, -1)
        self._salt = np.full(shape, "unwritten", object)
        self._era = np.full(shape, -1)
        self._device = (self._content, self._group, self._salt, self._era)
        self._host = [np.resize(memory, (sizes.num_swap_blocks, sizes.block_size)) for memory in self._device]
        columns = -(-sizes.max_model_len // sizes.block_size)
        self._tables = np.zeros((len(sizes.windows), sizes.max_num_seqs, columns), np.int32)
        # Of each slot, what was sampled last: by the last plan, and before each of the last plans.
        self._newest = np.zeros(sizes.max_num_seqs, np.int32)
        self._newest_before: collections.deque[np.ndarray] = collections.deque(maxlen=sizes.num_stages)
        self._in_flight: collections.deque[tuple[StepPlan, list[Any]]] = collections.deque()
        # Everything computed before a change of weights or a reset belongs to an earlier era.
        self._current_era = 0
        self._era_of: dict[Sequence, int] = {}

    def request(self, prompt: list[int], **params: Any) -> Request:
        """Make and add a request."""
        request = Request(
            str(len(self.requests)),
            prompt,
            SamplingParams(**params),
            max_model_len=self.sizes.max_model_len,
            eos_token_ids=[EOS],
            default_seed=len(self.requests),
        )
        self.requests.append(request)
        self.scheduler.add(request)
        return request

    def schedule(self) -> StepPlan | None:
        """Plan a step, and check the plan."""
        plan = self.scheduler.schedule()
        self.scheduler.check_integrity()
        if plan is not None:
            self._newest_before.append(self._newest.copy())
            self._check_plan(plan)
        return plan

    @property
    def _known(self) -> np.ndarray:
        """Of each slot, the newest token that the newest plan can be fed."""
        return self._newest_before[0]

    def complete(self, plan: StepPlan) -> None:
        """Run a plan, and take in the tokens of the oldest that has run."""
        self._dispatch(plan)
        self._take(*self._in_flight.popleft())

    def _dispatch(self, plan: StepPlan) -> None:
        tokens = self._run(plan)
        self._newest[plan.sampler_slot] = [0 if isinstance(token, tuple) else token for token in tokens]
        self._in_flight.append((plan, tokens))
        self._count(plan)

    def _count(self, plan: StepPlan) -> None:
        self.num_steps += 1
        self.num_preemptions += len(plan.preempted)
        self.num_forks += sum(sampler.sequence is not plan.sequences[sampler.row] for sampler in plan.samplers)
        self.num_copies += len(plan.block_copies)
        self.num_swapped_out += len(plan.swap_out)
        self.num_swapped_in += len(plan.swap_in)
        self.num_computed += plan.num_tokens
        self.num_fed += len(plan.fed)
        self.num_guessed += sum(map(len, plan.drafts.values()))

    def _take(self, plan: StepPlan, tokens: list[Any]) -> None:
        self.num_surplus += sum(sequence.finished for sequence in plan.sequences)
        self.scheduler.update(plan, tokens)
        self.scheduler.check_integrity()
        standing = standing_tokens(plan, tokens)
        for sampler, token in zip(plan.samplers, tokens, strict=True):
            sequence = sampler.sequence
            if sequence.finished or sampler.ahead >= standing.get(sequence, 1):
                continue
            if sampler.ahead:
                self.num_right += 1
                self.scheduler.extend(sequence, token)
            reason, stop_reason = check_stop(sequence, token)
            if reason is not None:
                self.scheduler.finish(sequence, reason, stop_reason)
        self.scheduler.check_integrity()

    def step(self) -> StepPlan | None:
        """One turn of the loop, which completes a step; ``None`` when there was nothing to do."""
        for _ in range(self.sizes.num_stages + self.sizes.overlap - len(self._in_flight)):
            plan = self.schedule()
            if plan is not None:
                self._dispatch(plan)
        if not self._in_flight:
            return None
        plan, tokens = self._in_flight.popleft()
        self._take(plan, tokens)
        return plan

    def reset(self) -> list[Request]:
        """Give up everything."""
        self._in_flight.clear()
        return self.scheduler.reset()

    def forget_prefixes(self, *, weights_changed: bool) -> None:
        """Reset the prefix cache, or change the weights, after which nothing computed before may be found."""
        if weights_changed:
            self.blocks.bump_weight_version()
        else:
            self.blocks.reset_prefix_cache()
        self._current_era += 1

    def finish_all(self) -> None:
        """Run until everything is finished, and check what came of it."""
        while self.step() is not None:
            pass
        assert not self.scheduler.has_unfinished
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0
        assert self.blocks.num_free_blocks == self.sizes.num_blocks - 1
        assert self.blocks.swap.num_used == 0
        for request in self.requests:
            assert request.finished
            for sequence in request.sequences:
                self._check_output(request, sequence)

    def _check_output(self, request: Request, sequence: Sequence) -> None:
        alone = answer_alone(request, sequence.index)
        output = sequence.output_token_ids.tolist()
        if sequence.finish_reason in ("abort", "error"):
            assert output == alone[: len(output)]
        else:
            assert output == alone
            complete = output[-1] == EOS and not request.params.ignore_eos
            assert sequence.finish_reason == ("stop" if complete else "length")

    def _check_plan(self, plan: StepPlan) -> None:
        slots = plan.slot.tolist()
        assert slots == sorted(set(slots)) == [sequence.slot for sequence in plan.sequences]
        assert plan.num_tokens == plan.count.sum() <= -(-self.sizes.max_num_batched_tokens // self.sizes.num_stages)
        assert plan.num_tokens > 0
        assert (plan.count > 0).all()
        places = [(sampler.slot, sampler.ahead) for sampler in plan.samplers]
        assert places == sorted(set(places))
        for sequence, drafts in plan.drafts.items():
            ahead = [sampler.ahead for sampler in plan.samplers if sampler.sequence is sequence]
            assert ahead == [*range(len(drafts) + 1)]
        for moves in (plan.block_copies, plan.swap_out, plan.swap_in):
            destinations = moves[:, 1].tolist()
            assert len(set(destinations)) == len(destinations)
        places = [tuple(update) for update in plan.table_updates[:, :3].tolist()]
        assert len(set(places)) == len(places)
        for sequence in plan.admitted:
            self._era_of[sequence] = self._current_era
        for sampler in plan.samplers:
            # A fork goes on with all that its parent has computed, as the parent does itself.
            self._era_of[sampler.sequence] = self._era_of[plan.sequences[sampler.row]]
        for victim in plan.preempted:
            # Never one that goes before a sequence that was given tokens, unless it has nothing to compute.
            resting = victim.status is SequenceStatus.RESTING
            assert resting or victim.order > max(row.order for row in plan.sequences)

    def _run(self, plan: StepPlan) -> list[int]:
        for memory, host in zip(self._device, self._host, strict=True):
            host[plan.swap_out[:, 1]] = memory[plan.swap_out[:, 0]]
            memory[plan.swap_in[:, 1]] = host[plan.swap_in[:, 0]]
            memory[plan.block_copies[:, 1]] = memory[plan.block_copies[:, 0]]
        group, slot, column, block = plan.table_updates.T
        self._tables[group, slot, column] = block
        self._write(plan)
        for row, sequence in enumerate(plan.sequences):
            fed = [self._known[plan.slot[row]]] if row in plan.fed else plan.drafts.get(sequence, [])
            self._check_context(int(plan.slot[row]), int(plan.start[row]), int(plan.count[row]), sequence, fed)
        tokens = []
        for sequence, _, row, ahead in plan.samplers:
            end = int(plan.sampler_position[len(tokens)])
            assert end == sequence.target - 1 + ahead == plan.ends[row] + ahead <= plan.start[row] + plan.count[row]
            block, offset = self._place(0, int(plan.slot[row]), end - 1)
            tokens.append(self._sample(sequence, int(self._content[block, offset])))
        return tokens

    def _sample(self, sequence: Sequence, fingerprint: int) -> Any:
        return next_token(fingerprint, sequence.request.seed, sequence.index)

    def _place(self, group: int, slot: int, position: int) -> tuple[int, int]:
        return int(self._tables[group, slot, position // self.sizes.block_size]), position % self.sizes.block_size

    def _write(self, plan: StepPlan) -> None:
        written = set()
        slots = np.repeat(plan.slot, plan.count).tolist()
        sequences = [sequence for sequence, n in zip(plan.sequences, plan.count, strict=True) for _ in range(n)]
        ids = plan.token_ids()
        ids[(np.cumsum(plan.count) - plan.count)[plan.fed]] = self._known[plan.slot[plan.fed]]
        tokens, positions = ids.tolist(), plan.positions().tolist()
        for slot, position, token, sequence in zip(slots, positions, tokens, sequences, strict=True):
            for group in range(len(self.sizes.windows)):
                before = 0
                if position > 0:
                    before = int(self._content[self._place(group, slot, position - 1)])
                place = self._place(group, slot, position)
                assert place[0] != 0, "a token is written to the null block"
                assert place not in written, "two tokens of a step are written to the same place"
                written.add(place)
                self._content[place] = extend_fingerprint(before, token)
                self._group[place] = group
                self._salt[place] = sequence.params.cache_salt
                self._era[place] = self._current_era

    def _check_context(self, slot: int, start: int, count: int, sequence: Sequence, fed: Iterable[np.int32]) -> None:
        end = start + count
        everything = fingerprints(np.append(sequence.token_ids[:end], fed).astype(np.int32))
        for group, window in enumerate(self.sizes.windows):
            positions = np.arange(0 if window is None else max(start - window + 1, 0), end)
            offset, expected = positions % self.sizes.block_size, everything[positions[0]:]
            block = self._tables[group, slot, positions // self.sizes.block_size]
            assert self._content[block, offset].tolist() == expected
            assert (self._group[block, offset] == group).all()
            assert (self._salt[block, offset] == sequence.params.cache_salt).all()
            assert (self._era[block, offset] >= self._era_of[sequence]).all()
