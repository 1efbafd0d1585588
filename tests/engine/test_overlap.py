"""Steps that are planned while the one before runs: the same outputs as one at a time, whatever happens in between."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from engine.beam_fake_engine import BeamFakeEngine
from engine.fake_engine import Sizes
from mixes import mixed_requests
from scripted import scripted_engine
from scripted_model import START, engine_on, flat_table
from support import EOS, bits, by_policy, check_idle, greedy, pool_bytes, prompts, run, tiny_engine

from jaxllm.config import EngineConfig
from jaxllm.errors import ParameterError
from jaxllm.runner.runner import Runner, StepResult
from jaxllm.sampling_params import SamplingParams


def _log_order(monkeypatch):
    """Records when the real runner's steps are dispatched and fetched."""
    order = []
    dispatch, fetch = Runner.dispatch, StepResult.fetch
    monkeypatch.setattr(Runner, "dispatch", lambda self, plan: (order.append("dispatch"), dispatch(self, plan))[1])
    monkeypatch.setattr(StepResult, "fetch", lambda self: (order.append("fetch"), fetch(self))[1])
    return order


@pytest.mark.parametrize(("overlap", "expected"), [
    (True, ["dispatch", "dispatch", "fetch", "dispatch", "fetch", "fetch"]),
    (False, ["dispatch", "fetch"] * 3),
])
def test_the_next_step_is_dispatched_before_the_results_of_this_one_are_asked_for(monkeypatch, overlap, expected):
    order = _log_order(monkeypatch)
    run(tiny_engine(overlap=overlap), [([9, 10], greedy(3))])
    assert order == expected


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in range(1, 30))])
def test_outputs_are_to_the_bit_those_of_steps_one_at_a_time(seed):
    requests = mixed_requests(14, seed)
    sizes = {"max_num_seqs": 6, "max_num_batched_tokens": 32, "kv_cache_bytes": pool_bytes(24)}
    engines = [tiny_engine(overlap=overlap, **sizes) for overlap in (False, True)]
    one_at_a_time, overlapped = ([bits(output) for output in run(engine, requests)] for engine in engines)
    assert overlapped == one_at_a_time
    assert engines[0].stats().num_generated_tokens == engines[1].stats().num_generated_tokens


@pytest.mark.case(31)
@pytest.mark.parametrize("overlap", [True, False])
def test_penalties_count_the_token_that_the_host_does_not_know_yet(monkeypatch, overlap):
    order = _log_order(monkeypatch)
    table = flat_table()
    table[:, [3, 4, 5]] = [2.0, 1.5, 1.2]
    (output,) = run(engine_on(table, overlap=overlap), [([START], greedy(9, frequency_penalty=1.0))])
    assert output.outputs[0].token_ids == [3, 4, 5, 3, 4, 5, 0, 1, 2]
    assert (order[:2] == ["dispatch", "dispatch"]) == overlap


def test_ends_by_length_are_foreseen_and_nothing_is_computed_beyond_them():
    lengths = [1, 2, 5, 9, 3, 1, 4, 2, 7]
    requests = [(prompt, greedy(length)) for prompt, length in zip(prompts(9, 3), lengths, strict=True)]
    figures = []
    for overlap in (False, True):
        # A step planned ahead guesses less.
        engine = tiny_engine(overlap=overlap, max_num_seqs=3, speculative_config=None)
        outputs = run(engine, requests)
        stats = engine.stats()
        figures.append((stats.num_steps, stats.num_computed_tokens, [output.num_cached_tokens for output in outputs]))
    # Slots and blocks are given back in time too: the steps are the very same.
    assert figures[0] == figures[1]


def test_the_end_of_the_context_is_foreseen():
    engine = tiny_engine(max_model_len=16)
    (output,) = run(engine, [([9] * 12, SamplingParams(temperature=0, ignore_eos=True))])
    assert len(output.outputs[0].token_ids) == 4
    assert engine.stats().num_computed_tokens == 15


def test_shared_prefixes_are_found_as_early_as_without_overlap():
    prefix = prompts(1, 5, low=50, high=51)[0]
    requests = [([*prefix, token], greedy(2)) for token in range(20, 26)]
    found = []
    for overlap in (False, True):
        engine = tiny_engine(overlap=overlap, max_num_batched_tokens=24)
        found.append([output.num_cached_tokens for output in run(engine, requests)])
    assert found[0] == found[1]
    assert min(found[0][1:]) > 0


def test_a_stop_is_found_a_step_late_and_what_was_computed_meanwhile_counts_nowhere():
    engine = scripted_engine(lambda sequence: EOS if sequence.num_output == 3 else 20 + sequence.num_output)
    (output,) = run(engine, [([1, 2, 3, 4, 5], SamplingParams(max_tokens=9, logprobs=1))])
    sample = output.outputs[0]
    assert (sample.token_ids, len(sample.logprobs), sample.finish_reason) == ([20, 21, 22, EOS], 4, "stop")
    assert engine.stats().num_generated_tokens == 4
    assert engine.scheduler.num_running == 0
    # Blocks of 4: the prompt and three outputs fill two; the stop token, computed for nothing, is in no cached block.
    (again,) = run(engine, [([1, 2, 3, 4, 5, 20, 21, 22, EOS, 9], greedy(1))])
    assert again.num_cached_tokens == 8


def test_the_engine_is_idle_when_the_last_request_has_stopped_though_a_step_for_it_runs():
    engine = scripted_engine(lambda sequence: EOS)
    engine.add_request([1, 2], SamplingParams(max_tokens=5))
    (output,) = engine.step()
    assert output.finished
    assert engine._runner.steps == 2
    check_idle(engine)
    assert engine.step() == []


def test_every_step_shows_the_requests_that_progressed():
    engine = tiny_engine()
    engine.add_request([9, 10], greedy(3), request_id="a")
    lengths = []
    while engine.has_unfinished():
        lengths += [len(output.outputs[0].token_ids) for output in engine.step()]
    assert lengths == [1, 2, 3]


def test_an_aborted_request_gives_way_to_one_of_the_same_name_while_its_step_runs():
    engine = tiny_engine()
    engine.add_request([9, 10], greedy(20), request_id="a")
    engine.step()
    assert len(engine.abort("a").outputs[0].token_ids) == 1
    check_idle(engine)
    prompt = [11, 12, 13]
    engine.add_request(prompt, greedy(4), request_id="a")
    outputs = []
    while engine.has_unfinished():
        outputs += engine.step()
        engine.check_integrity()
    assert bits(outputs[-1]) == bits(run(tiny_engine(overlap=False), [(prompt, greedy(4))])[0])


@pytest.mark.parametrize("after", range(1, 5))
def test_a_request_that_joins_or_goes_leaves_the_others_alone(after):
    first, second, third = prompts(3, 11, low=20, high=40)
    params = SamplingParams(temperature=1.0, seed=5, max_tokens=12, logprobs=2, n=2)
    (expected,) = run(tiny_engine(overlap=False), [(first, params)])
    engine = tiny_engine(max_num_batched_tokens=16)
    wanted = engine.add_request(first, params)
    gone = engine.add_request(second, greedy(30))
    done = {}
    for step in range(100):
        if step == after:
            engine.abort(gone)
            engine.add_request(third, greedy(5))
        done.update({output.request_id: output for output in engine.step()})
        engine.check_integrity()
        if not engine.has_unfinished():
            break
    assert bits(done[wanted]) == bits(expected)
    check_idle(engine)


class _Break(Exception):
    pass


def test_a_step_that_cannot_be_dispatched_ends_its_requests_and_the_one_that_runs_is_delivered(monkeypatch):
    engine = scripted_engine(lambda sequence: 5, max_num_seqs=2)
    engine.add_request([1], greedy(1), request_id="last token")
    engine.add_request([2], greedy(5), request_id="goes on")
    dispatch, calls = engine._runner.dispatch, []

    def fail_once(plan):
        calls.append(plan)
        if len(calls) == 2:
            raise _Break("no memory")
        return dispatch(plan)

    monkeypatch.setattr(engine._runner, "dispatch", fail_once)
    outputs = {output.request_id: output for output in engine.step()}
    assert outputs["goes on"].error.type == "_Break"
    assert outputs["last token"].outputs[0].token_ids == [5]
    assert outputs["last token"].error is None
    check_idle(engine)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_while_a_step_is_dispatched_loses_nothing_of_the_one_that_runs(monkeypatch, kind):
    engine = scripted_engine(lambda sequence: 5, max_num_seqs=2)
    inbox = collections.deque()
    engine.add_request([1], greedy(1), request_id="last token", inbox=inbox)
    engine.add_request([2], greedy(5), request_id="goes on", inbox=inbox)
    dispatch, calls = engine._runner.dispatch, []

    def interrupted(plan):
        calls.append(plan)
        if len(calls) == 2:
            raise kind
        return dispatch(plan)

    monkeypatch.setattr(engine._runner, "dispatch", interrupted)
    with pytest.raises(kind):
        engine.step()
    outputs = {collector.output().request_id: collector.output() for collector in inbox}
    assert outputs["goes on"].error.type == kind.__name__
    assert outputs["last token"].error is None
    assert outputs["last token"].outputs[0].token_ids == [5]
    check_idle(engine)


def test_results_that_cannot_be_fetched_end_their_requests_and_those_of_the_next_step_go_on():
    said = []

    def script(sequence):
        said.append(sequence.request.request_id)
        return _Break("lost") if said == ["first"] else 6

    engine = scripted_engine(script, max_num_seqs=2)
    engine.add_request([1], greedy(4), request_id="first")
    dispatch = engine._runner.dispatch

    def dispatch_and_add(plan):
        engine._runner.dispatch = dispatch
        # Joins before the second step is planned.
        engine.add_request([2], greedy(2), request_id="second")
        return dispatch(plan)

    engine._runner.dispatch = dispatch_and_add
    (failed,) = engine.step()
    assert (failed.request_id, failed.error.type) == ("first", "_Break")
    outputs = []
    while engine.has_unfinished():
        outputs += engine.step()
        engine.check_integrity()
    assert outputs[-1].outputs[0].token_ids == [6, 6]
    check_idle(engine)


def test_lost_device_state_ends_the_step_that_was_planned_ahead_too():
    engine = scripted_engine(lambda sequence: 5)
    engine.add_request([1], greedy(9), request_id="a")
    engine.step()

    def lose(sequence):
        engine._runner.intact = False
        return _Break("the device is gone")

    engine._runner.script = lose
    (output,) = engine.step()
    assert output.outputs[0].token_ids == [5]
    assert output.error.type == "_Break"
    check_idle(engine)
    engine._runner.script = lambda sequence: 7
    assert run(engine, [([1], greedy(2))])[0].outputs[0].token_ids == [7, 7]


def test_a_failed_computation_is_noticed_in_the_state_that_it_leaves():
    engine = tiny_engine()
    run(engine, [([9], greedy(2))])
    assert engine._runner.intact
    engine._runner.newest.delete()
    assert not engine._runner.intact


def test_prefixes_forgotten_while_a_step_runs_are_not_found():
    prompt = prompts(1, 8, low=40, high=41)[0]
    engine = tiny_engine()
    engine.add_request(prompt, greedy(8))
    engine.step()
    engine.reset_prefix_cache()
    while engine.has_unfinished():
        engine.step()
        engine.check_integrity()
    (again,) = run(engine, [(prompt, greedy(1))])
    assert again.num_cached_tokens == 0


@pytest.mark.parametrize("width", [1, 2, 3])
def test_beams_that_wait_for_their_rows_keep_no_one_else_waiting(width):
    engine = BeamFakeEngine(Sizes(num_blocks=80, max_num_seqs=6, max_num_batched_tokens=16, overlap=True))
    engine.search([0, 1, 2], width, max_tokens=6, ignore_eos=True)
    alone = engine.request([3, 2, 1], max_tokens=6, ignore_eos=True)
    turns = 0
    while not alone.finished:
        engine.step()
        turns += 1
    assert turns == 6
    engine.finish_all()
    assert engine.num_surplus == 0


@pytest.mark.parametrize("value", [None, 1, "on"])
def test_overlap_is_on_or_off(value):
    with pytest.raises(ParameterError, match="overlap"):
        EngineConfig(max_num_seqs=1, max_num_batched_tokens=16, max_model_len=16, block_size=4, num_blocks=9,
                     vocab_size=9, overlap=value)


def test_a_policy_by_priority_gives_the_same_outputs():
    requests = [(prompt, by) for prompt, by in mixed_requests(8, 41)]
    engines = [tiny_engine(overlap=overlap, scheduling_policy="priority", kv_cache_bytes=pool_bytes(20),
                           max_num_batched_tokens=32) for overlap in (False, True)]
    requests = [(prompt, by_policy(engines[0], params)) for prompt, params in requests]
    outputs = [[bits(output) for output in run(engine, requests)] for engine in engines]
    assert outputs[0] == outputs[1]
    assert np.all([engine.stats().num_running == 0 for engine in engines])
