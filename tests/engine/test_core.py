"""The engine's loop on a scripted runner: stops, errors, interrupts, order; nothing is lost and nothing leaks."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import itertools
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scripted import scripted_engine
from support import EOS, greedy, run
from tokenization.toy_tokenizers import byte_level_tokenizer

from jaxllm.errors import EngineError, ParameterError
from jaxllm.sampling import NO_TOKEN
from jaxllm.sampling_params import SamplingParams
from jaxllm.tokenization import IncrementalDetokenizer

LETTERS = byte_level_tokenizer(["A", "B", "C", "DEF", "G", " ", "XY", "!"], special=["<s>"])


def _one(script, params, tokenizer=LETTERS, **sizes):
    engine = scripted_engine(script, tokenizer, vocab_size=9, **sizes)
    (output,) = run(engine, [([1, 2], params)])
    assert engine.stats().kv_blocks_used == 0
    return output


def test_a_stop_string_inside_a_token_ends_the_text_before_it():
    output = _one([0, 1, 3, 4], SamplingParams(stop="DE", max_tokens=4))
    assert output.outputs[0].text == "AB"
    assert output.outputs[0].token_ids == [0, 1, 3]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", "DE")


def test_logprobs_are_as_many_as_tokens_when_a_stop_string_spans_tokens():
    output = _one([0, 1, 2, 3, 4], SamplingParams(stop="CDE", logprobs=0, max_tokens=5))
    assert output.outputs[0].text == "AB"
    assert len(output.outputs[0].token_ids) == len(output.outputs[0].logprobs) == 4
    assert output.outputs[0].cumulative_logprob == pytest.approx(-2.0)


def test_the_stop_string_is_kept_when_asked_for():
    params = SamplingParams(stop="DE", include_stop_str_in_output=True, max_tokens=4)
    assert _one([0, 3], params).outputs[0].text == "ADE"


def test_a_stop_string_before_min_tokens_is_ignored_and_a_later_one_stops():
    output = _one([0, 1, 0, 1, 0, 1, 4], SamplingParams(stop="B", min_tokens=3, max_tokens=7))
    assert output.outputs[0].text == "ABA"
    assert len(output.outputs[0].token_ids) == 4


def test_a_stop_id_leaves_the_text_whole_though_special_tokens_are_hidden():
    output = _one([0, 1, 8], SamplingParams(stop_token_ids=[8], max_tokens=5))
    assert output.outputs[0].text == "AB"
    assert output.outputs[0].token_ids == [0, 1, 8]
    assert output.outputs[0].stop_reason == 8


def test_end_of_sequence_has_no_stop_reason_and_can_be_ignored():
    stopped = _one([0, EOS, 1], SamplingParams(max_tokens=3)).outputs[0]
    assert (stopped.finish_reason, stopped.stop_reason, stopped.token_ids) == ("stop", None, [0, EOS])
    ignored = _one([0, EOS, 1], SamplingParams(max_tokens=3, ignore_eos=True)).outputs[0]
    assert (ignored.finish_reason, ignored.token_ids) == ("length", [0, EOS, 1])


def test_without_max_tokens_the_context_is_filled():
    output = _one(lambda sequence: 0, SamplingParams(), max_model_len=16, num_blocks=17)
    assert len(output.outputs[0].token_ids) == 14
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize(("prompt", "name"), [
    ([], "prompt"), ("", "prompt"), ([9], "prompt_token_ids"), ([-1], "prompt_token_ids"), ([1.5], "prompt_token_ids"),
    ([[1]], "prompt_token_ids"), (None, "prompt"), (b"AB", "prompt"), ({}, "prompt"), ({"text": "A"}, "prompt"),
    ({"prompt_token_ids": "AB"}, "prompt_token_ids"), ([1] * 64, "prompt length"),
])
def test_a_bad_prompt_is_refused_before_it_is_queued(prompt, name):
    engine = scripted_engine([0], LETTERS, vocab_size=9)
    with pytest.raises(ParameterError) as caught:
        engine.add_request(prompt, SamplingParams(max_tokens=1))
    assert caught.value.parameter == name
    assert not engine.has_unfinished()


@pytest.mark.parametrize("params", [
    SamplingParams(stop_token_ids=[9]), SamplingParams(logit_bias={9: 1.0}), SamplingParams(logprobs=21),
    SamplingParams(allowed_token_ids=[9]), SamplingParams(banned_token_ids=[99]), {"temperature": 0},
])
def test_parameters_beyond_the_model_are_refused(params):
    engine = scripted_engine([0], LETTERS, vocab_size=9)
    with pytest.raises(ParameterError):
        engine.add_request([1], params)
    assert not engine.has_unfinished()


def test_an_id_in_use_is_refused_and_its_owner_goes_on():
    engine = scripted_engine(lambda sequence: 0, LETTERS, vocab_size=9)
    engine.add_request([1], greedy(3), request_id="a")
    with pytest.raises(ParameterError):
        engine.add_request([1], greedy(3), request_id="a")
    assert [output.request_id for output in (engine.step(), engine.step(), engine.step())[-1]] == ["a"]


def test_a_failed_step_ends_its_requests_with_the_error_and_the_rest_go_on():
    fails = {"bad"}

    def script(sequence):
        if sequence.request.request_id in fails and sequence.num_output == 2:
            return RuntimeError("the device is on fire")
        return 0

    engine = scripted_engine(script, max_num_seqs=1)
    for name in ("bad", "good"):
        engine.add_request([1, 2, 3], greedy(4), request_id=name)
    done = {}
    while engine.has_unfinished():
        done.update({output.request_id: output for output in engine.step() if output.finished})
        engine.check_integrity()
    assert done["bad"].error.type == "RuntimeError"
    assert "on fire" in done["bad"].error.message
    assert done["bad"].outputs[0].token_ids == [0, 0]
    assert done["bad"].outputs[0].finish_reason == "error"
    assert done["good"].outputs[0].token_ids == [0, 0, 0, 0]
    assert engine.stats().kv_blocks_used == 0


def test_lost_device_state_ends_everything_and_is_made_anew():
    engine = scripted_engine(lambda sequence: 0)
    runner = engine._runner
    for name in ("a", "b"):
        engine.add_request([1, 2, 3], greedy(4), request_id=name)
    engine.step()

    def lose(sequence):
        runner.intact = False
        return MemoryError("no memory")

    runner.script = lose
    failed = engine.step()
    assert {output.request_id: output.error.type for output in failed} == {"a": "MemoryError", "b": "MemoryError"}
    assert runner.resets == 1
    runner.script = lambda sequence: 1
    assert run(engine, [([1], greedy(2))])[0].outputs[0].token_ids == [1, 1]


def test_an_interrupt_inside_a_step_leaves_nothing_behind():
    engine = scripted_engine(lambda sequence: KeyboardInterrupt() if sequence.num_output == 1 else 0)
    inbox = collections.deque()
    engine.add_request([1, 2, 3], greedy(4), inbox=inbox)
    engine.step()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert inbox[-1].output().error.type == "KeyboardInterrupt"
    assert not engine.has_unfinished()
    assert engine.stats().kv_blocks_used == 0
    engine._runner.script = lambda sequence: 5
    (output,) = run(engine, [([9], greedy(2))])
    assert output.outputs[0].token_ids == [5, 5]


@pytest.mark.parametrize("offset", [0, *(pytest.param(offset, marks=pytest.mark.sweep) for offset in range(1, 16))])
def test_ctrl_c_at_any_line_leaves_the_engine_whole(offset):
    engine = scripted_engine(lambda sequence: sequence.num_output, LETTERS, vocab_size=9, num_blocks=20)

    def work(line):
        """Serve requests, with Ctrl-C at the ``line``-th line of the engine's code; whether there was such a line."""
        count = itertools.count(1)

        def trace(frame, event, argument):
            if "/jaxllm/engine/" not in frame.f_code.co_filename:
                return None
            if event == "line" and next(count) == line:
                signal.raise_signal(signal.SIGINT)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            engine.add_request([1, 2, 3], greedy(3, stop="zz"), request_id="a")
            engine.add_request([1, 2, 3, 4, 5], greedy(5, n=2), request_id="b")
            while engine.has_unfinished():
                engine.step()
            engine.reset_prefix_cache()
        except KeyboardInterrupt:
            sys.settrace(before)
            engine.abort("a")
            engine.abort("b")
        finally:
            sys.settrace(before)
        return next(count) > line

    line = 1 + offset
    while work(line):
        engine.check_integrity()
        assert not engine.has_unfinished()
        assert engine.stats().kv_blocks_used == 0
        assert not engine.replicas[0].outcomes._collectors
        line += 16
    first, second = run(engine, [([1, 2, 3], greedy(3)), ([1, 2, 3, 4, 5], greedy(5, n=2))])
    assert [sample.token_ids for sample in first.outputs] == [[0, 1, 2]]
    assert [sample.token_ids for sample in second.outputs] == [[0, 1, 2, 3, 4]] * 2


def test_an_output_made_while_another_thread_steps_is_whole(monkeypatch):
    engine = scripted_engine(lambda sequence: sequence.num_output % 3, LETTERS, vocab_size=9)
    inbox = collections.deque()
    engine.add_request([1, 2], greedy(8), inbox=inbox)
    engine.advance()
    collector, entered, stepped = inbox[0], threading.Event(), threading.Event()
    append, main = IncrementalDetokenizer.append, threading.current_thread()

    def slow_append(self, tokens):
        if threading.current_thread() is not main:
            entered.set()
            stepped.wait(0.2)  # without a lock, the step below runs now
        return append(self, tokens)

    monkeypatch.setattr(IncrementalDetokenizer, "append", slow_append)
    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(collector.output)
        entered.wait(10)
        engine.step()
        stepped.set()
        output = making.result()
    assert entered.is_set()
    assert output.outputs[0].text == LETTERS.decode(output.outputs[0].token_ids)
    while engine.has_unfinished():
        engine.step()
    assert collector.output().outputs[0].text == "ABCABCAB"


def test_an_id_that_a_caller_chose_is_not_given_again():
    engine = scripted_engine(lambda sequence: 0)
    engine.add_request([1], greedy(2), request_id="request-1")
    ids = {engine.add_request([1], greedy(2)) for _ in range(3)}
    assert len(ids) == 3
    assert "request-1" not in ids


def test_logits_that_give_no_token_fail_that_request_alone():
    engine = scripted_engine(lambda sequence: NO_TOKEN if sequence.request.request_id == "nan" else 3)
    for name in ("nan", "fine"):
        engine.add_request([1], greedy(2, n=2), request_id=name)
    done = {}
    while engine.has_unfinished():
        done.update({output.request_id: output for output in engine.step() if output.finished})
        engine.check_integrity()
    assert done["nan"].error.type == EngineError.__name__
    assert "NaN" in done["nan"].error.message
    assert [sample.token_ids for sample in done["fine"].outputs] == [[3, 3], [3, 3]]


def test_a_request_that_fails_keeps_what_it_had_and_nothing_else():
    """No sample gets a token in the step in which one of them cannot."""
    def choose(sequence):
        return NO_TOKEN if (sequence.index, sequence.num_output) == (1, 2) else 3

    engine = scripted_engine(choose, LETTERS, vocab_size=9)
    name = engine.add_request([1], SamplingParams(n=3, max_tokens=8, ignore_eos=True))
    while engine.has_unfinished():
        (output,) = engine.step()
        engine.check_integrity()
    assert output.request_id == name
    assert "no token could be chosen at position 3" in output.error.message
    assert [(sample.token_ids, sample.text, sample.finish_reason) for sample in output.outputs] == [
        ([3, 3], "DEFDEF", "error")] * 3
    assert engine.stats().num_generated_tokens == 6


def test_abort_returns_what_there_is_and_frees_it():
    engine = scripted_engine(lambda sequence: 0, LETTERS, vocab_size=9)
    name = engine.add_request([1, 2], SamplingParams(max_tokens=9, ignore_eos=True))
    engine.step()
    engine.step()
    output = engine.abort(name)
    assert output.outputs[0].text == "AA"
    assert output.outputs[0].finish_reason == "abort"
    assert engine.abort(name) is None
    assert not engine.has_unfinished()
    assert engine.stats().kv_blocks_used == 0


def test_outputs_of_a_step_are_copies():
    engine = scripted_engine(lambda sequence: 0)
    engine.add_request([1], greedy(3, logprobs=1))
    (first,) = engine.step()
    before = dataclasses.replace(first.outputs[0], token_ids=list(first.outputs[0].token_ids))
    engine.step()
    assert first.outputs[0] == before


def test_requests_can_join_while_others_run():
    engine = scripted_engine(lambda sequence: 10 + sequence.num_output)
    engine.add_request([1], greedy(6), request_id="early")
    engine.step()
    engine.add_request([2], greedy(2), request_id="late")
    done = []
    while engine.has_unfinished():
        done += [output.request_id for output in engine.step() if output.finished]
    assert done == ["late", "early"]


def test_async_generators_share_the_engine_and_abort_when_left():
    engine = scripted_engine(lambda sequence: sequence.num_output, max_num_seqs=3)

    async def collect(length):
        return [output async for output in engine.generate([1], greedy(length))]

    async def leave_early():
        iterator = engine.generate([1], greedy(30))
        async for output in iterator:
            if len(output.outputs[0].token_ids) >= 3:
                await iterator.aclose()
                return

    async def main():
        return await asyncio.gather(*(collect(length) for length in range(1, 9)), leave_early())

    results = asyncio.run(main())
    for length, outputs in zip(range(1, 9), results[:-1], strict=True):
        assert outputs[-1].finished
        assert outputs[-1].outputs[0].token_ids == list(range(length))
        assert [output.finished for output in outputs[:-1]] == [False] * (len(outputs) - 1)
    assert not engine.has_unfinished()
    assert engine.stats().kv_blocks_used == 0


def test_unseeded_requests_report_a_seed_and_seeded_ones_theirs():
    outputs = run(scripted_engine(lambda sequence: 0), [
        ([1], SamplingParams(max_tokens=1)), ([1], SamplingParams(max_tokens=1)),
        ([1], SamplingParams(max_tokens=1, seed=11))])
    seeds = [output.outputs[0].seed for output in outputs]
    assert seeds[0] != seeds[1]
    assert seeds[2] == 11
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_user_random_state_is_left_alone():
    np.random.seed(3)
    before = np.random.get_state()[1].tolist()
    run(scripted_engine(lambda sequence: 0), [([1], SamplingParams(max_tokens=2))])
    assert np.random.get_state()[1].tolist() == before


def test_metrics_are_in_order():
    (output,) = run(scripted_engine(lambda sequence: 0), [([1], greedy(3))])
    metrics = output.metrics
    assert metrics.arrival_time <= metrics.first_scheduled_time <= metrics.first_token_time <= metrics.finished_time
    assert metrics.time_to_first_token >= 0


@pytest.mark.parametrize("request_id", [[], {}, 5, b"x", ("a",)])
def test_a_request_id_is_text(request_id):
    engine = scripted_engine([9])
    with pytest.raises(ParameterError, match="request_id"):
        engine.add_request([1, 2], SamplingParams(max_tokens=1), request_id=request_id)
    assert not engine.has_unfinished()
