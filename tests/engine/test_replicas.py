"""An engine of several replicas on scripted runners: independent steps, and one's trouble is not the others'."""

from __future__ import annotations

import asyncio
import collections
import threading

import pytest
from scripted import ScriptedRunner, ScriptedStep
from support import EOS, check_idle, greedy, run

from jaxllm.beam_search import BeamSearchParams
from jaxllm.config import EngineConfig
from jaxllm.engine.core import Engine
from jaxllm.engine.seeds import derived_seed
from jaxllm.errors import EngineError, ParameterError
from jaxllm.sampling_params import SamplingParams


def _replicas(count, script=lambda sequence: 20 + sequence.num_output, runner=ScriptedRunner, in_order=False, **sizes):
    config = EngineConfig(**{
        "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 64, "block_size": 4, "num_blocks": 65,
        "vocab_size": 300, **sizes})
    return Engine([runner(script) for _ in range(count)], config, eos_token_ids=[EOS], in_order=in_order)


def _served(engine, output):
    """The replica that an unfinished request runs on."""
    return next(number for number, replica in enumerate(engine.replicas)
                if any(request.request_id == output for request in replica.scheduler.requests))


@pytest.mark.parametrize("in_order", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_all_requests_are_answered_and_every_replica_works(count, overlap, in_order):
    engine = _replicas(count, overlap=overlap, in_order=in_order)
    requests = [([number] * (number % 9 + 1), greedy(number % 5 + 1)) for number in range(40)]
    outputs = run(engine, requests)
    assert [output.outputs[0].token_ids for output in outputs] == [
        [20 + token for token in range(params.max_tokens)] for _, params in requests]
    check_idle(engine)
    assert all(stats.num_steps > 5 for stats in engine.replica_stats())
    total = engine.stats()
    assert total.num_generated_tokens == sum(params.max_tokens for _, params in requests)
    assert total.kv_blocks_total == count * 64
    assert total.num_steps == sum(stats.num_steps for stats in engine.replica_stats())


@pytest.mark.parametrize("count", [1, 2, 4])
def test_seeds_follow_the_order_of_arrival_in_the_engine(count):
    engine = _replicas(count, seed=3)
    outputs = run(engine, [([number], SamplingParams(max_tokens=2)) for number in range(12)])
    assert [output.outputs[0].seed for output in outputs] == [derived_seed(3, number) for number in range(12)]


class _Slow(ScriptedRunner):
    """A runner whose steps do not end before ``gate`` is open."""

    def __init__(self, script):
        super().__init__(script)
        self.gate = threading.Event()
        self.gate.set()

    def dispatch(self, plan):
        super().dispatch(plan)
        return _GatedStep(self, plan)


class _GatedStep(ScriptedStep):
    def fetch(self):
        assert self.runner.gate.wait(60)
        return super().fetch()


def test_a_slow_replica_keeps_no_other_waiting():
    engine = _replicas(2, runner=_Slow)
    slow, fast = engine.add_request([1] * 8, greedy(3)), engine.add_request([2] * 8, greedy(9))
    assert (_served(engine, slow), _served(engine, fast)) == (0, 1)
    engine.replicas[0].runner.gate.clear()
    progressed = [engine.step() for _ in range(9)]
    assert [[output.request_id for output in outputs] for outputs in progressed] == [[fast]] * 9
    assert progressed[-1][0].finished
    engine.replicas[0].runner.gate.set()
    assert [len(engine.step()[0].outputs[0].token_ids) for _ in range(3)] == [1, 2, 3]
    check_idle(engine)


def test_both_replicas_have_a_step_before_either_is_waited_for():
    engine = _replicas(2, runner=_Slow)
    for runner in (replica.runner for replica in engine.replicas):
        runner.gate.clear()
    engine.add_request([1], greedy(4))
    engine.add_request([2], greedy(4))
    thread = threading.Thread(target=engine.step)
    thread.start()
    for runner in (replica.runner for replica in engine.replicas):
        for _ in range(1000):
            if runner.steps == 2:
                break
            thread.join(0.01)
        assert runner.steps == 2
    engine.replicas[1].runner.gate.set()
    thread.join()
    assert [stats.num_generated_tokens for stats in engine.replica_stats()] == [0, 1]
    engine.replicas[0].runner.gate.set()
    while engine.has_unfinished():
        engine.step()
    check_idle(engine)


def test_in_order_steps_are_taken_in_turns():
    engine = _replicas(3, in_order=True)
    names = [engine.add_request([number], greedy(3)) for number in range(3)]
    taken = []
    while engine.has_unfinished():
        taken += [output.request_id for output in engine.step()]
    assert taken == names * 3


def test_a_replica_with_one_long_request_runs_on_alone():
    engine = _replicas(3)
    requests = [([number], greedy(1)) for number in range(8)]
    outputs = run(engine, [([9] * 20, greedy(40)), *requests])
    assert len(outputs[0].outputs[0].token_ids) == 40
    check_idle(engine)


class _Break(Exception):
    pass


def test_a_failing_step_ends_its_own_requests_and_the_other_replica_goes_on():
    def script(sequence):
        return _Break("no") if sequence.request.request_id == "bad" and sequence.num_output == 2 else 20

    engine = _replicas(2, script)
    engine.add_request([1], greedy(5), request_id="bad")
    engine.add_request([2], greedy(5), request_id="good")
    done = _finish(engine)
    assert done["bad"].error.type == "_Break"
    assert (done["good"].error, done["good"].outputs[0].token_ids) == (None, [20] * 5)
    check_idle(engine)


def test_lost_device_state_is_made_anew_and_costs_the_other_replica_nothing():
    engine = _replicas(2)
    lost, kept = engine.add_request([1], greedy(5)), engine.add_request([2], greedy(5))
    runner = engine.replicas[_served(engine, lost)].runner

    def lose(sequence):
        runner.intact = False
        return _Break("the device is gone")

    runner.script = lose
    done = _finish(engine)
    assert done[lost].error.type == "_Break"
    assert done[kept].outputs[0].token_ids == [20, 21, 22, 23, 24]
    runner.script = engine.replicas[1].runner.script
    assert runner.resets == 1
    assert [output.error for output in run(engine, [([number], greedy(2)) for number in range(4)])] == [None] * 4
    assert engine.replica_stats()[0].num_generated_tokens > 0


class _Mortal(ScriptedRunner):
    dead = False

    def reset(self):
        if self.dead:
            raise _Break("no such device")
        super().reset()


def test_the_others_take_over_from_a_replica_that_does_not_come_back():
    engine = _replicas(2, runner=_Mortal)
    lost, kept = engine.add_request([1], greedy(3)), engine.add_request([2], greedy(3))
    runner = engine.replicas[0].runner
    runner.intact, runner.dead, runner.script = False, True, lambda sequence: _Break("the device is gone")
    done = _finish(engine)
    assert (done[lost].error.type, done[kept].error) == ("_Break", None)
    assert [output.error for output in run(engine, [([number], greedy(2)) for number in range(9)])] == [None] * 9
    assert runner.steps == 2
    other = engine.replicas[1].runner
    other.intact, other.dead, other.script = False, True, lambda sequence: _Break("this one too")
    assert run(engine, [([1], greedy(3))])[0].error.message == "this one too"
    with pytest.raises(EngineError, match="no such device"):
        engine.add_request([1], greedy(1))
    assert not engine.has_unfinished()


def _finish(engine):
    done = {}
    while engine.has_unfinished():
        done.update({output.request_id: output for output in engine.step()})
    return done


def test_a_step_that_cannot_be_dispatched_harms_nobody_else():
    class Refusing(ScriptedRunner):
        def dispatch(self, plan):
            if any(sequence.request.request_id == "bad" for sequence in plan.sequences):
                raise _Break("no memory")
            return super().dispatch(plan)

    engine = _replicas(2, runner=Refusing)
    engine.add_request([1], greedy(3), request_id="bad")
    engine.add_request([2], greedy(3), request_id="good")
    done = _finish(engine)
    assert (done["bad"].error.type, done["good"].error) == ("_Break", None)
    check_idle(engine)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_ends_the_step_that_it_came_in_and_the_rest_can_go_on(kind):
    interrupts = {"first"}

    def script(sequence):
        if sequence.request.request_id in interrupts and sequence.num_output == 1:
            return kind()
        return 20

    engine = _replicas(2, script)
    engine.add_request([1], greedy(4), request_id="first")
    engine.add_request([2], greedy(4), request_id="second")
    with pytest.raises(kind):
        _finish(engine)
    done = _finish(engine)
    assert done["second"].outputs[0].token_ids == [20] * 4
    check_idle(engine)
    assert run(engine, [([1], greedy(2)), ([2], greedy(2))])[0].error is None


def test_an_aborted_request_gives_way_to_one_of_the_same_name_on_another_replica():
    engine = _replicas(2)
    engine.add_request([1] * 9, greedy(9), request_id="a")
    with pytest.raises(ParameterError, match="request_id"):
        engine.add_request([2], greedy(3), request_id="a")
    engine.step()
    assert engine.abort("a").outputs[0].finish_reason == "abort"
    assert engine.abort("a") is None
    engine.add_request([2] * 9, greedy(9))
    engine.add_request([1] * 9, greedy(3), request_id="a")
    assert _finish(engine)["a"].outputs[0].token_ids == [20, 21, 22]
    check_idle(engine)


def test_requests_follow_their_prefix_to_the_replica_that_has_it():
    engine = _replicas(2)
    prefixes = [[1] * 40, [2] * 40]
    first = run(engine, [(prefix, greedy(2)) for prefix in prefixes])
    assert [output.num_cached_tokens for output in first] == [0, 0]
    again = run(engine, [([*prefixes[number % 2], number], greedy(2)) for number in range(6)])
    assert [output.num_cached_tokens for output in again] == [40] * 6
    engine.reset_prefix_cache()
    (anew,) = run(engine, [([*prefixes[0], 9], greedy(2))])
    assert anew.num_cached_tokens == 0


def test_many_can_wait_for_their_outputs_at_once():
    engine = _replicas(3)

    async def answer(number):
        return [output.outputs[0].token_ids async for output in engine.generate([number], greedy(6))]

    async def everything():
        return await asyncio.gather(*map(answer, range(12)))

    for grown in asyncio.run(everything()):
        assert grown[-1] == [20, 21, 22, 23, 24, 25]
    check_idle(engine)


def test_an_inbox_hears_of_its_requests_on_any_replica():
    engine = _replicas(3)
    inbox = collections.deque()
    names = {engine.add_request([number], greedy(1), inbox=inbox) for number in range(6)}
    heard = set()
    while heard != names:
        engine.advance_until(inbox)
        heard.add(inbox.popleft().request.request_id)
    check_idle(engine)


def test_a_search_runs_on_one_replica():
    engine = _replicas(2)
    with pytest.raises(ParameterError, match="beam_width"):
        engine.add_request([1], BeamSearchParams(beam_width=5, max_tokens=2))
    assert not engine.has_unfinished()
