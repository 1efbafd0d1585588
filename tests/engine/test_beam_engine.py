"""Beam searches through the real runner and sampler, on a table of logits and on the tiny model."""

from __future__ import annotations

import asyncio
import collections
import functools
import itertools
import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from engine.test_beam import name
from mixes import mixed_requests
from scripted import scripted_engine
from scripted_model import SIZE, START, engine_on, flat_table, path_table, spelling
from support import EOS, bits, greedy, pool_bytes, prompts, run, tiny_engine

from jaxllm.beam_search import BeamSearchOutput, BeamSearchParams
from jaxllm.errors import ParameterError
from jaxllm.sampling import NO_TOKEN

GOLDEN = json.loads(Path(__file__).parents[1].joinpath("golden/beam_hf.json").read_text())
TABLE = np.array(GOLDEN["table"], np.float32)
SPELLINGS = ["<start>", *(chr(0x100 + number) for number in range(1, SIZE))]
"""What each id spells."""


def golden_params(item):
    return BeamSearchParams(
        item["beam_width"], item["max_tokens"], length_penalty=item["length_penalty"],
        early_stopping=item["early_stopping"], num_return_sequences=item["num_return_sequences"],
        stop=["".join(SPELLINGS[token] for token in ids) for ids in item.get("stop_runs", [])])


@functools.cache
def _golden_outputs(ends):
    """All searches with these ends of sequence, in one batch that has no room for all of them."""
    items = [item for item in GOLDEN["items"] if tuple(item["eos_token_ids"]) == ends]
    engine = engine_on(TABLE, spelling(*SPELLINGS[1:]), ends)
    outputs = run(engine, [(item["prompt"], golden_params(item)) for item in items])
    assert engine.stats().kv_blocks_used == 0
    return dict(zip(map(json.dumps, items), outputs, strict=True))


@pytest.mark.case(40)
@pytest.mark.parametrize("item", GOLDEN["items"], ids=name)
def test_the_engine_finds_what_hugging_face_finds(item):
    output = _golden_outputs(tuple(item["eos_token_ids"]))[json.dumps(item)]
    assert [found.token_ids for found in output.sequences] == [each["token_ids"] for each in item["sequences"]]
    if item["beam_width"] > 1:
        # Float32 log-softmaxes of two implementations, summed.
        assert [found.score for found in output.sequences] == pytest.approx(
            [each["score"] for each in item["sequences"]], rel=1e-5)


def test_a_hypothesis_says_all_about_itself():
    engine = engine_on(TABLE, spelling(*SPELLINGS[1:]), [7])
    (output,) = run(engine, [([0, 21], BeamSearchParams(3, 6, length_penalty=0.5))])
    assert isinstance(output, BeamSearchOutput)
    assert output.finished
    assert output.prompt_token_ids == [0, 21]
    scores = [found.score for found in output.sequences]
    assert scores == sorted(scores, reverse=True)
    for index, found in enumerate(output.sequences):
        ended = found.token_ids[-1] == 7
        assert found.index == index
        assert (found.finish_reason, found.stop_reason) == ("stop" if ended else "length", None)
        assert found.text == "".join(SPELLINGS[token] for token in found.token_ids)
        lines = [line[token] for line, token in zip(found.logprobs, found.token_ids, strict=True)]
        assert found.cum_logprob == found.cumulative_logprob == pytest.approx(sum(each.logprob for each in lines))
        assert found.score == pytest.approx(found.cum_logprob / len(found.token_ids) ** 0.5)
        before = 21
        for line, token in zip(lines, found.token_ids, strict=True):
            assert line.rank == 1 + np.count_nonzero(TABLE[before] > TABLE[before, token])
            assert line.decoded_token == SPELLINGS[token]
            before = token


def test_searches_that_look_beyond_the_short_list_of_logprobs_find_the_same():
    engine = engine_on(TABLE, spelling(*SPELLINGS[1:]), [7, 11])
    # With a stop string, here one that never comes, each row's 24 best tokens count.
    short, long = run(engine, [([0, 21], BeamSearchParams(8, 6, stop=stop)) for stop in (None, "never")])
    assert search_bits(short) == search_bits(long)


@pytest.mark.case(40)
def test_a_stop_string_over_several_tokens_finishes_a_hypothesis_and_is_cut_off():
    tokenizer = spelling("a", "b", "c", "d")
    table = path_table([START, 1, 2, 3, 4, 4], logit=3.0)
    for kept, text in ((False, "a"), (True, "abc")):
        params = BeamSearchParams(2, 5, stop="bc", include_stop_str_in_output=kept)
        (output,) = run(engine_on(table, tokenizer), [([START], params)])
        best = output.sequences[0]
        assert best.token_ids == [1, 2, 3]
        assert (best.text, best.finish_reason, best.stop_reason) == (text, "stop", "bc")


def test_a_stop_string_in_the_prompt_or_begun_there_does_not_count():
    tokenizer = spelling("a", "b", "c", "d")
    (output,) = run(engine_on(path_table([1, 2, 3, 3]), tokenizer), [([1, 1], BeamSearchParams(2, 4, stop="aab"))])
    assert output.sequences[0].token_ids == [2, 3, 3, 3]
    assert output.sequences[0].finish_reason == "length"


def test_a_stop_string_that_only_the_end_of_the_text_completes_stops():
    tokenizer = spelling(b"\xc3", "a")
    params = BeamSearchParams(2, 2, stop="\ufffd")
    (output,) = run(engine_on(path_table([START, 2, 1, 1], logit=9.0), tokenizer), [([START], params)])
    best = output.sequences[0]
    assert (best.token_ids, best.text, best.stop_reason) == ([2, 1], "a", "\ufffd")


def test_stop_ids_finish_with_themselves_as_reason_and_ends_of_sequence_without():
    table = path_table([START, 1, 2, 3], logit=2.0)
    params = BeamSearchParams(4, 3, stop_token_ids=[2], length_penalty=0.0)
    (output,) = run(engine_on(table, None, [1]), [([START], params)])
    reasons = {tuple(found.token_ids): (found.finish_reason, found.stop_reason) for found in output.sequences}
    assert reasons[1,] == ("stop", None)
    assert reasons[2,] == ("stop", 2)
    (output,) = run(engine_on(table, None, [1]), [([START], params.replace(ignore_eos=True))])
    assert all(1 not in found.token_ids or found.stop_reason == 2 or found.finish_reason == "length"
               for found in output.sequences)
    assert [1, 2] in [found.token_ids for found in output.sequences]


def test_equal_scores_are_in_order_of_beam_and_id():
    (output,) = run(engine_on(flat_table()), [([START], BeamSearchParams(4, 2, ignore_eos=True))])
    assert [found.token_ids for found in output.sequences] == [[0, 0], [0, 1], [0, 2], [0, 3]]


@pytest.mark.case(40)
def test_length_penalty_counts_the_output_without_the_prompt():
    engine = engine_on(TABLE, None, [7])
    outputs = run(engine, [([*range(20), 21], BeamSearchParams(3, 6)), ([0, 21], BeamSearchParams(3, 6))])
    assert [found.score for found in outputs[0].sequences] == [found.score for found in outputs[1].sequences]


@pytest.mark.case(40)
@pytest.mark.parametrize(("penalty", "best"), [(2.0, [2, 3, 4, 5, 1]), (1.0, [2, 3, 4, 5, 1]), (0.0, [1]), (-1.0, [1])])
def test_a_penalty_above_0_favours_long_outputs_and_one_below_0_short_ones(penalty, best):
    table = path_table([2, 3, 4, 5, 1], logit=40.0)
    table[START, 1:3] = np.log([0.7, 0.3]) + 40
    (output,) = run(engine_on(table, None, [1]), [([START], BeamSearchParams(2, 6, length_penalty=penalty))])
    assert output.sequences[0].token_ids == best
    expected = np.log(0.7 if best == [1] else 0.3) / len(best) ** penalty
    assert output.sequences[0].score == pytest.approx(expected, rel=1e-4)  # float32 log-softmax at logits of 40


def test_max_tokens_is_bounded_by_the_context():
    (output,) = run(engine_on(TABLE), [([*range(61)], BeamSearchParams(2, 50, ignore_eos=True))])
    assert {len(found.token_ids) for found in output.sequences} == {3}


@pytest.mark.parametrize(("params", "name"), [
    (BeamSearchParams(9, 4), "beam_width"), (BeamSearchParams(2, 4, stop="a"), "stop"),
    (BeamSearchParams(2, 4, stop_token_ids=[SIZE]), "stop_token_ids")])
def test_what_the_engine_cannot_do_is_refused_by_name(params, name):
    engine = engine_on(TABLE)
    with pytest.raises(ParameterError) as caught:
        engine.add_request([1], params)
    assert caught.value.parameter == name
    assert not engine.has_unfinished()


def interrupted_at(line, work):
    """Do some work, with Ctrl-C at the ``line``-th line of the engine's code; whether there was such a line."""
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
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return next(count) > line


SEARCHES = [(prompt, BeamSearchParams(width, 12, length_penalty=penalty, early_stopping=early))
            for prompt, width, penalty, early in zip(
                prompts(5, 3, low=3, high=50), (2, 4, 3, 5, 1), (1.0, 0.0, 2.0, -1.0, 1.0),
                (False, True, "never", False, True), strict=True)]


def search_bits(output):
    """Everything numeric of a search, to be compared with ``==``, to the bit."""
    return [(found.token_ids, found.score, found.cum_logprob, found.logprobs, found.finish_reason)
            for found in output.sequences]


@functools.cache
def _alone(dtype):
    engine = tiny_engine(dtype, enable_prefix_caching=False)
    return [search_bits(run(engine, [search])[0]) for search in SEARCHES]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.sweep)])
@pytest.mark.parametrize(("blocks", "sizes"), [
    (None, {}), (16, {"swap_bytes": 1 << 18}), *(pytest.param(*case, marks=pytest.mark.sweep) for case in [
        (None, {"max_num_batched_tokens": 16, "max_num_seqs": 5}), (16, {}), (16, {"swap_bytes": 1 << 14})])], ids=str)
def test_bits_are_equal_in_the_mix_with_a_small_budget_and_preemption(dtype, blocks, sizes):
    if blocks is not None:
        sizes = {**sizes, "kv_cache_bytes": pool_bytes(blocks, dtype=dtype)}
    engine = tiny_engine(dtype, **sizes)
    others = mixed_requests(6, 5)
    outputs = run(engine, [*others[:3], *SEARCHES, *others[3:]])
    assert [search_bits(output) for output in outputs[3:8]] == _alone(dtype)
    assert (blocks is not None) == (engine.stats().num_preemptions > 0)
    again = run(engine, SEARCHES)
    assert [search_bits(output) for output in again] == _alone(dtype)
    assert engine.stats().kv_blocks_used == 0


def test_searches_leave_the_bits_of_other_requests_alone():
    others = mixed_requests(6, 5)
    alone = [bits(output) for output in run(tiny_engine(), others)]
    mixed = run(tiny_engine(kv_cache_bytes=pool_bytes(24)), [*SEARCHES, *others])
    assert [bits(output) for output in mixed[len(SEARCHES):]] == alone


def test_beam_width_one_is_greedy_search():
    prompt = prompts(1, 8)[0]
    engine = tiny_engine()
    sampling = greedy(20, ignore_eos=False, logprobs=0)
    beams, samples = run(engine, [(prompt, BeamSearchParams(1, 20)), (prompt, sampling)])
    assert beams.sequences[0].token_ids == samples.outputs[0].token_ids
    assert beams.sequences[0].logprobs == samples.outputs[0].logprobs
    assert beams.sequences[0].finish_reason == samples.outputs[0].finish_reason


def test_unfinished_outputs_show_the_running_beams_best_first():
    engine = engine_on(TABLE, None, [7])
    engine.add_request([0, 21], BeamSearchParams(4, 8))
    lengths = []
    while engine.has_unfinished():
        (output,) = engine.step()
        scores = [found.score for found in output.sequences]
        assert scores == sorted(scores, reverse=True)
        assert len(output.sequences) <= 4
        running = [found for found in output.sequences if not found.finished]
        assert output.finished == (not running)
        lengths.append({len(found.token_ids) for found in running})
    assert lengths[0] == {1}
    assert lengths[-1] == set()


def test_a_step_that_serves_some_beams_only_shows_nothing_new():
    engine = scripted_engine(lambda sequence: 0, max_num_batched_tokens=16, max_num_seqs=20)
    engine.add_request([0, 21], BeamSearchParams(20, 3, ignore_eos=True))
    shown = [len(engine.step()) for _ in range(5)]
    assert shown == [1, 0, 1, 0, 1]
    assert not engine.has_unfinished()


def test_abort_gives_the_running_beams_and_frees_everything():
    engine = engine_on(TABLE, None)
    request_id = engine.add_request([0, 21], BeamSearchParams(4, 30, ignore_eos=True))
    for _ in range(3):
        engine.step()
    output = engine.abort(request_id)
    assert output.finished
    assert [(len(found.token_ids), found.finish_reason) for found in output.sequences] == [(3, "abort")] * 4
    engine.check_integrity()
    assert engine.stats().kv_blocks_used == 0
    request_id = engine.add_request([0, 21], BeamSearchParams(4, 30))
    assert engine.abort(request_id).sequences == []


def test_a_failed_step_ends_the_search_even_if_only_some_beams_were_in_it():
    engine = scripted_engine(lambda sequence: 0, max_num_batched_tokens=16, max_num_seqs=4)
    engine.add_request(list(range(8, 20)), greedy(40), request_id="other")
    engine.add_request([1, 2, 3], BeamSearchParams(3, 8, ignore_eos=True), request_id="beams")
    for _ in range(3):
        engine.step()
    engine._runner.script = lambda sequence: RuntimeError("the device is on fire")
    outputs = {}
    for _ in range(2):  # the next step may be under way already
        outputs.update((output.request_id, output) for output in engine.step())
    assert outputs["beams"].error.type == "RuntimeError"
    assert {found.finish_reason for found in outputs["beams"].sequences} == {"error"}
    engine.check_integrity()
    assert not engine.has_unfinished()
    assert engine.stats().kv_blocks_used == 0


def test_an_interrupt_in_a_step_leaves_nothing_behind():
    calls = iter(range(100))
    engine = scripted_engine(lambda sequence: KeyboardInterrupt() if next(calls) == 5 else 0)
    inbox = collections.deque()
    engine.add_request([1, 2, 3], BeamSearchParams(3, 8, ignore_eos=True), inbox=inbox)
    engine.step()
    engine.step()
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    assert inbox[-1].output().error.type == "KeyboardInterrupt"
    engine.check_integrity()
    assert engine.stats().kv_blocks_used == 0


@pytest.mark.parametrize("offset", [0, *(pytest.param(offset, marks=pytest.mark.sweep) for offset in range(1, 48))])
def test_ctrl_c_at_any_line_leaves_the_engine_whole(offset):
    engine = scripted_engine(lambda sequence: 0, num_blocks=20)

    def serve():
        engine.add_request([1, 2, 3], BeamSearchParams(3, 5, ignore_eos=True), request_id="beams")
        engine.add_request([1, 2, 3, 4, 5], greedy(5, n=2), request_id="samples")
        while engine.has_unfinished():
            engine.step()

    line = 1 + offset
    while interrupted_at(line, serve):
        for request_id in ("beams", "samples"):
            engine.abort(request_id)
        engine.check_integrity()
        assert not engine.has_unfinished()
        assert engine.stats().kv_blocks_used == 0
        assert not engine.replicas[0].outcomes._collectors
        line += 48
    assert line > 1000


def test_logits_that_give_no_token_fail_the_search_alone():
    engine = scripted_engine(
        lambda sequence: NO_TOKEN if sequence.request.beams and sequence.num_output == 2 and sequence.index == 1 else 0)
    engine.add_request([1, 2, 3], BeamSearchParams(3, 8, ignore_eos=True), request_id="beams")
    engine.add_request([1, 2], greedy(6), request_id="other")
    done = {}
    while engine.has_unfinished():
        done.update({output.request_id: output for output in engine.step() if output.finished})
        engine.check_integrity()
    assert "NaN" in done["beams"].error.message
    assert done["other"].outputs[0].token_ids == [0] * 6


def test_an_async_generator_yields_the_search_as_it_goes():
    engine = engine_on(TABLE, None, [7])

    async def collect():
        return [output async for output in engine.generate([0, 21], BeamSearchParams(3, 6))]

    outputs = asyncio.run(collect())
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]


def test_the_model_end_ids_end_beams_on_the_tiny_model():
    (output,) = run(tiny_engine(), [(prompts(1, 3)[0], BeamSearchParams(8, 40))])
    for found in output.sequences:
        assert EOS not in found.token_ids[:-1]
        assert (found.token_ids[-1] == EOS) == (found.finish_reason == "stop")


def test_the_prompt_is_computed_once_and_cached_for_the_next_search():
    prompt = prompts(1, 9, low=40, high=41)[0]
    engine = tiny_engine()
    first, second = (run(engine, [(prompt, BeamSearchParams(4, 4, ignore_eos=True))])[0] for _ in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)
    # The prompt, then 3 steps of 4 beams.
    assert engine.stats().num_computed_tokens == 40 + 12 + 8 + 12
