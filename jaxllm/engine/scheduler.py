"""``Scheduler``: decides, step by step, which tokens of which sequences are computed."""

from __future__ import annotations

from collections.abc import Iterable

from jaxllm.engine.beam_group import Succession
from jaxllm.engine.beam_scheduling import BeamScheduling
from jaxllm.engine.block_manager import BlockManager
from jaxllm.engine.limits import SchedulerConfig
from jaxllm.engine.plan import StepDraft, StepPlan
from jaxllm.engine.request import Request, Sequence, SequenceStatus
from jaxllm.engine.running import Running
from jaxllm.engine.schedule_integrity import QUEUED, check_schedule
from jaxllm.engine.token_scheduling import TokenScheduling
from jaxllm.engine.waiting_queue import WaitingQueue
from jaxllm.errors import CapacityError, ParameterError
from jaxllm.outputs import FinishReason
from jaxllm.speculative.drafting import add_drafts
from jaxllm.speculative.speculator import Speculator


class Scheduler:
    """Continuous batching under one token budget.

    There is no separate prefill: a sequence has ``num_computed`` tokens and a target, ``num_tokens``, and each step
    computes some of the difference; when it reaches the target, a token is sampled.

    - Running sequences go first, in policy order, then waiting ones, in policy order; prompts are computed in chunks.
    - A sequence that lacks blocks takes them from the running sequence that goes last, whose blocks are freed. They are
      copied to host memory and later back, if there is room, or else computed anew. It never takes them from one that
      goes before it: the last in order waits, keeping its blocks. So the first in order always advances.
    - A waiting sequence is admitted when a slot is free and blocks for all its tokens are, besides one more for each
      that already runs. Nothing is preempted to admit another, whatever its priority.
    - ``n`` samples compute their prompt once: the step that completes it in sample 0 forks the others into free slots;
      those that find none wait like any other sequence, and will find most of the prompt in the prefix cache.
    - Beams that wait for their fellows (``BeamScheduling``) give up their slots and blocks when nothing else can
      advance, the last in order first.
    - A step can be planned before the outcome of the one before is known (``update``). It computes tokens that are
      pending as far as the device alone has to know them (``Sequence.must_wait``), and none of sequences that end with
      one. One that turns out to have ended otherwise is left with a row that computes something of no use to anyone.
    - Where a pipeline runs the steps (``num_stages``), as many are on their way at once, which share budget and
      sequences: a sequence's next token is computed so many plans after the one before, or when that is known, and each
      plan takes its share of those that decode and leaves the others to the next.

    Raises ``CapacityError`` when the pool cannot hold one sequence of ``max_model_len``.
    """

    def __init__(self, config: SchedulerConfig, blocks: BlockManager, speculator: Speculator | None = None) -> None:
        available = blocks.num_blocks - 1
        needed = blocks.groups.blocks_for(config.max_model_len)
        if needed > available:
            fits = blocks.groups.longest(available, config.max_model_len)
            raise CapacityError(
                f"max_model_len={config.max_model_len} needs {needed} blocks of {blocks.block_size} tokens and the KV "
                f"cache has {available}: raise num_blocks to {needed + 1}, or lower max_model_len to at most {fits}"
            )
        self.config = config
        self.blocks = blocks
        self._speculator = speculator
        self._num_arrived = 0
        self._num_plans = 0
        self._clear()

    def _clear(self) -> None:
        self._requests: dict[str, Request] = {}
        self._waiting = WaitingQueue()
        self._running = Running(self.config.max_num_seqs, self.blocks)
        self._beams = BeamScheduling(self._running, self._waiting, self.blocks)
        self._tokens = TokenScheduling(self._running, self._waiting, self._beams, self.blocks, self.config.num_stages)
        # Since the last plan, which the next one has to name.
        self._preempted: list[Sequence] = []
        self._newest: StepPlan | None = None

    @property
    def has_unfinished(self) -> bool:
        """Whether any request is unfinished."""
        return bool(self._requests)

    @property
    def num_running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running.sequences)

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue: of an ``n``-sample request that has not run its prompt, only the first."""
        return len(self._waiting)

    @property
    def requests(self) -> Iterable[Request]:
        """The unfinished requests, in order of arrival."""
        return self._requests.values()

    def add(self, request: Request) -> None:
        """Queue a request. Raises ``ParameterError`` when its id is that of an unfinished one."""
        if request.request_id in self._requests:
            raise ParameterError("request_id", request.request_id, "an id that no unfinished request has")
        room = self.config.max_model_len - len(request.prompt_token_ids)
        if request.max_tokens > room:
            allowed = f"at most {room}, the room that the prompt leaves in max_model_len={self.config.max_model_len}"
            raise ParameterError("max_tokens", request.max_tokens, allowed)
        request.arrival = self._num_arrived
        self._num_arrived += 1
        rank = request.params.priority if self.config.policy == "priority" else 0
        for sequence in request.sequences:
            sequence.order = (rank, request.arrival, sequence.index)
        if request.beams is not None:
            request.forked = True
            for sequence in request.sequences[1:]:
                sequence.status = SequenceStatus.RESTING
        self._requests[request.request_id] = request
        self._waiting.push(request.sequences[0])

    def schedule(self) -> StepPlan | None:
        """Plan the step that follows the ones planned so far; ``None`` when there is nothing it could compute."""
        self._settle()
        budget = self.config.step_budget
        speculator = self._speculator if self.config.num_stages == 1 else None  # a pipeline has others to go on with
        if speculator is not None and speculator.waits(self._running.sequences, budget):
            return None
        step = StepDraft(budget, self._num_plans, admitted=self._beams.forked.copy())
        self._tokens.fill(step)
        if not step.counts:
            self._preempted += step.preempted
            return None
        if self._speculator is not None:
            add_drafts(step, self._speculator, self._running, self.blocks, budget)
        step.preempted[:0] = self._preempted
        self._preempted, self._beams.forked = [], []
        plan = self._newest = step.plan(*self.blocks.changes.take(), *self.blocks.swap.take_moves())
        ends = plan.ends.tolist()
        for sequence, end in zip(plan.sequences, ends, strict=True):
            sequence.num_computed = end
        for sequence, row in plan.forks:
            sequence.num_computed = ends[row]
        for sequence, ahead in zip(plan.sampled, plan.ahead, strict=True):
            if not ahead:
                sequence.num_pending += 1
                sequence.newest_plan = step.number
        self._num_plans += 1
        for sequence in plan.drafts:
            sequence.is_guessing = True
        return plan

    def _settle(self) -> None:
        """Draw the conclusions of the newest plan that do not depend on its outcome.

        What it computes can be found by others, and what ends with its outcome needs slot and blocks no longer: the
        device runs steps in the order of their plans.
        """
        plan, self._newest = self._newest, None
        if plan is None:
            return
        self._publish(plan)
        for sequence in plan.sampled:
            if sequence.ends_with_pending and sequence.status is SequenceStatus.RUNNING:
                self._running.leave(sequence)
                sequence.status = SequenceStatus.ENDING

    def _publish(self, plan: StepPlan) -> None:
        """Let others find the blocks that the newest plan fills, and those that its new sequences brought along."""
        size = self.blocks.block_size
        fills = plan.ends // size > plan.start // size
        for sequence in [*(plan.sequences[row] for row in fills.nonzero()[0].tolist()), *plan.admitted]:
            if sequence.status is SequenceStatus.RUNNING:
                self._advance(sequence)

    def _advance(self, sequence: Sequence) -> None:
        """What follows from ``num_computed``, once it has passed the end of a block."""
        self.blocks.publish(sequence, sequence.num_computed)
        self.blocks.trim(sequence)

    def update(self, plan: StepPlan, token_ids: list[int]) -> int:
        """Record the outcome of the oldest plan: what it sampled, one token for each of ``plan.samplers``.

        A negative one is none, for a sequence that ends before the next plan. Sequences that finished since the plan
        was made are left alone. Returns for how many others there was a token, drafts aside.
        """
        if len(token_ids) != len(plan.sampled):
            raise ValueError(f"{len(token_ids)} tokens for {len(plan.sampled)} samplers")
        if plan is self._newest:
            self._newest = None
            self._publish(plan)
        num_recorded = 0
        for sequence, ahead, token in zip(plan.sampled, plan.ahead, token_ids, strict=True):
            if ahead or sequence.status is SequenceStatus.FINISHED:
                continue
            sequence.num_pending -= 1
            sequence.is_guessing = False
            if token >= 0:
                num_recorded += 1
                if sequence.request.beams is None:
                    sequence.append(token)
        return num_recorded

    def extend(self, sequence: Sequence, token: int) -> None:
        """Append one more token of the plan last recorded: one after a draft that turned out to be the token before."""
        sequence.append(token)
        if sequence.status is SequenceStatus.RUNNING:
            sequence.num_computed += 1
            self._advance(sequence)

    def continue_beams(self, succession: Succession) -> None:
        """Let the sequences of a beam search go on as a selection says."""
        self._beams.continue_beams(succession)

    def finish(self, sequence: Sequence, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """End one sample and free what it holds. Does nothing when it has ended already."""
        if sequence.finished:
            return
        request = sequence.request
        queued = sequence.status in QUEUED and (sequence.index == 0 or request.forked)
        if sequence.status is SequenceStatus.RUNNING:
            self._running.leave(sequence)
        sequence.status = SequenceStatus.FINISHED
        sequence.finish_reason, sequence.stop_reason = reason, stop_reason
        if queued:
            self._waiting.discard(sequence)
            self.blocks.swap.discard(sequence)
        if sequence.index == 0 and not request.forked:
            # Without sample 0 to run the prompt, the others see to it themselves.
            request.forked = True
            for sample in request.sequences:
                if not sample.finished:
                    self._waiting.push(sample)
        if request.finished:
            del self._requests[request.request_id]

    def abort(self, request_id: str, reason: FinishReason = "abort") -> bool:
        """End all samples of a request; whether there was an unfinished one of that id."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        # Sample 0 last, or else its end would first queue the others.
        for sequence in reversed(request.sequences):
            self.finish(sequence, reason)
        return True

    def drop(self, plan: StepPlan, reason: FinishReason = "error") -> list[Request]:
        """End the requests that a plan which did not run concerns, and return them; the others can go on."""
        if plan is self._newest:
            self._newest = None
            self._num_plans -= 1  # as those are counted that a pipeline is on its way with
        self.blocks.swap.invalidate(plan.swap_out[:, 1].tolist())
        concerned = [*plan.sequences, *plan.admitted]
        requests = {sequence.request.request_id: sequence.request for sequence in concerned if not sequence.finished}
        for request_id in requests:
            self.abort(request_id, reason)
        return list(requests.values())

    def reset(self, reason: FinishReason = "abort") -> list[Request]:
        """End everything and empty the cache, whatever state an interrupt has left; return the requests ended."""
        requests = list(self._requests.values())
        for request in requests:
            for sequence in request.sequences:
                if not sequence.finished:
                    sequence.status, sequence.slot, sequence.finish_reason = SequenceStatus.FINISHED, None, reason
        self._clear()
        self.blocks.clear()
        return requests

    def check_integrity(self) -> None:
        """Raise ``IntegrityError`` unless every invariant of slots, queues and blocks holds."""
        requests = self._requests.values()
        check_schedule(self.config, requests, self._running, self._waiting, self.blocks)

