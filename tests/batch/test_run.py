"""Batches from file to file: what is written when, what a second run does, what ends a run and what does not."""

from __future__ import annotations

import io
import json
import signal

import pytest
from batch.scripted_batch import DEFAULTS, ScriptedLLM, read_results, write_requests

from jaxllm import EngineError, ParameterError, SamplingParams
from jaxllm.batch import BatchSummary, run_batch
from jaxllm.batch.run import IN_FLIGHT_PER_SEQ
from jaxllm.engine.seeds import derived_seed


def counts(summary):
    return summary.completed, summary.failed, summary.done_before, summary.unfinished


@pytest.fixture(autouse=True)
def _nothing_leaks(monkeypatch):
    made = []
    init = ScriptedLLM.__init__
    monkeypatch.setattr(ScriptedLLM, "__init__", lambda self, *args, **sizes: (made.append(self),
                                                                               init(self, *args, **sizes))[1])
    yield
    for llm in made:
        llm.engine.check_integrity()
        assert not llm.engine.has_unfinished()
        assert llm.engine.stats().kv_blocks_used == 0


def test_every_request_has_a_result_with_its_id_or_line(tmp_path):
    write_requests(tmp_path, {"custom_id": "a", "prompt": [1]}, "", {"prompt": [2], "max_tokens": 1},
                   {"custom_id": "c", "messages": [{"role": "user", "content": "abc"}], "n": 2, "temperature": 0.5,
                    "logprobs": 0})
    summary = ScriptedLLM().run(tmp_path)
    results = read_results(tmp_path)
    assert summary == BatchSummary(total=3, done_before=0, failed_before=0, completed=3, failed=0, unfinished=0,
                                   num_tokens=10, interrupted=False)
    assert {name: result["line"] for name, result in results.items()} == {"a": 1, 3: 3, "c": 4}
    assert [result["error"] for result in results.values()] == [None] * 3
    assert results["a"]["outputs"][0]["token_ids"] == [20, 21, 22]
    assert results["a"]["outputs"][0]["finish_reason"] == "length"
    assert "logprobs" not in results["a"]["outputs"][0]
    assert isinstance(results["a"]["outputs"][0]["seed"], int)
    assert results[3]["outputs"][0]["token_ids"] == [20]
    assert [sample["index"] for sample in results["c"]["outputs"]] == [0, 1]
    assert len(results["c"]["outputs"][0]["logprobs"]) == 3
    assert results["c"]["num_prompt_tokens"] == 2


def test_results_are_on_disk_when_their_requests_end(tmp_path):
    seen = []

    def script(sequence):
        seen.append(len(read_results(tmp_path)))
        return 5

    write_requests(tmp_path, {"prompt": [1], "max_tokens": 1}, {"prompt": [2], "max_tokens": 4})
    ScriptedLLM(script).run(tmp_path)
    assert seen == [0, 0, 1, 1, 1]


BAD = [
    "not json", "[1, 2]", '"text"', "{}", b"\xff\xfe", '{"prompt": [1], "prompt": [2]}', '{"prompt": [NaN]}',
    "[" * 9999,
    {"prompt": [1], "temprature": 1}, {"prompt": [1], "temperature": -1}, {"prompt": [1], "messages": []},
    {"prompt": 5}, {"prompt": []}, {"prompt": [300]}, {"prompt": ["a"]}, {"prompt": [1] * 65}, {"prompt": [[1]]},
    {"prompt": "no tokenizer"}, {"messages": "hi"}, {"messages": [7]}, {"messages": [], "tools": 1, "max_tokens": 0},
    {"custom_id": 7, "prompt": [1]}, {"custom_id": "", "prompt": [1]}, {"prompt": [1], "self": 1},
    {"prompt": [1], "structured_outputs": {"jsn": {}}}, {"prompt": [1], "structured_outputs": "json"},
    {"prompt": [1], "structured_outputs": {"regex": "a"}}, {"prompt": [1], "stop": 5}, {"prompt": [1], "n": "2"},
    {"url": "/v1/embeddings", "method": "POST", "body": {"input": "x"}},
]


def test_bad_lines_are_failed_results_and_the_others_go_on(tmp_path):
    write_requests(tmp_path, {"prompt": [1]}, *BAD, {"prompt": [2]})
    llm = ScriptedLLM()
    summary = llm.run(tmp_path, max_in_flight=1)
    results = read_results(tmp_path)
    assert counts(summary) == (2, len(BAD), 0, 0)
    assert llm.prompts == [1, 2]
    for number in range(2, 2 + len(BAD)):
        error = results[number]["error"]
        assert error["type"] == "ParameterError", (BAD[number - 2], error)
        assert error["parameter"]
        assert results[number]["outputs"] == []
    assert results[10]["error"]["parameter"] == "temprature"
    assert "did you mean temperature" in results[10]["error"]["message"]


def test_the_first_line_has_an_id_and_later_ones_fail_in_this_run_and_the_next(tmp_path):
    write_requests(tmp_path, {"custom_id": "a", "prompt": [1]}, {"custom_id": "b", "prompt": [2]},
                   {"custom_id": "a", "prompt": [3]}, {"custom_id": "a", "prompt": [1]})
    llm = ScriptedLLM()
    assert counts(llm.run(tmp_path)) == (2, 2, 0, 0)
    results = read_results(tmp_path)
    assert set(results) == {"a", "b", 3, 4}
    assert results["a"]["line"] == 1
    assert results[3]["error"]["parameter"] == "custom_id"
    assert "line 1 has it" in results[4]["error"]["message"]
    assert counts(llm.run(tmp_path)) == (0, 0, 4, 0)
    assert llm.prompts == [1, 2]


def test_no_more_requests_are_in_the_engine_than_allowed_and_lines_are_read_as_they_are_needed(tmp_path):
    write_requests(tmp_path, *({"prompt": [1 + number % 7], "max_tokens": 1 + number % 3} for number in range(200)))
    llm = ScriptedLLM()
    assert counts(llm.run(tmp_path, max_in_flight=5)) == (200, 0, 0, 0)
    assert llm.most_in_flight == 5
    (tmp_path / "results.jsonl").unlink()
    llm = ScriptedLLM()
    llm.run(tmp_path)
    assert llm.most_in_flight == IN_FLIGHT_PER_SEQ * llm.engine.config.max_num_seqs


@pytest.mark.parametrize("bad", [0, -1, 1.5, True])
def test_max_in_flight_is_a_positive_integer(tmp_path, bad):
    write_requests(tmp_path, {"prompt": [1]})
    with pytest.raises(ParameterError, match="max_in_flight"):
        ScriptedLLM().run(tmp_path, max_in_flight=bad)


def test_failed_requests_stay_failed_unless_they_are_retried(tmp_path):
    write_requests(tmp_path, {"prompt": [1]}, {"prompt": [2]}, "bad")
    failing = ScriptedLLM(lambda sequence: RuntimeError("boom") if sequence.request.prompt_token_ids[0] == 2 else 5)
    assert counts(failing.run(tmp_path, max_in_flight=1)) == (1, 2, 0, 0)
    assert read_results(tmp_path)[2]["error"] == {"type": "RuntimeError", "message": "boom", "parameter": None}
    healthy = ScriptedLLM()
    summary = healthy.run(tmp_path)
    assert (counts(summary), summary.failed_before) == ((0, 0, 3, 0), 2)
    summary = healthy.run(tmp_path, retry_failed=True)
    assert (counts(summary), summary.failed_before) == ((1, 1, 1, 0), 0)
    assert healthy.prompts == [2]
    assert len((tmp_path / "results.jsonl").read_bytes().splitlines()) == 5
    assert read_results(tmp_path)[2]["error"] is None  # the later result of an id
    summary = healthy.run(tmp_path)
    assert (counts(summary), summary.failed_before) == ((0, 0, 3, 0), 1)


def test_whatever_a_line_brings_to_fail_is_its_own_failure(tmp_path):
    class Failing(ScriptedLLM):
        def chat_prompt(self, messages, **options):
            raise ZeroDivisionError("in the template")

    write_requests(tmp_path, {"messages": []}, {"prompt": [1]})
    assert counts(Failing().run(tmp_path)) == (1, 1, 0, 0)
    assert read_results(tmp_path)[1]["error"] == {
        "type": "ZeroDivisionError", "message": "in the template", "parameter": None}


def test_an_engine_that_takes_no_requests_ends_the_run_without_results(tmp_path):
    write_requests(tmp_path, {"prompt": [1]}, {"prompt": [2]})
    llm = ScriptedLLM()
    llm.engine._asleep = True
    with pytest.raises(EngineError, match="wake_up"):
        llm.run(tmp_path)
    assert read_results(tmp_path) == {}
    llm.engine._asleep = False
    assert counts(llm.run(tmp_path)) == (2, 0, 0, 0)


def test_what_someone_else_aborts_is_left_to_the_next_run(tmp_path):
    def script(sequence):
        if sequence.request.prompt_token_ids[0] == 1 and sequence.num_output == 1:
            aborted.append(sequence.request.request_id)
        return 5

    aborted = []
    write_requests(tmp_path, {"prompt": [1]}, {"prompt": [2], "max_tokens": 5})
    llm = ScriptedLLM(script)
    advance = llm.engine.advance

    def advance_and_abort():
        progressed = advance()
        while aborted:
            llm.engine.abort(aborted.pop())
        return progressed

    llm.engine.advance = advance_and_abort
    summary = llm.run(tmp_path)
    assert (counts(summary), summary.interrupted) == ((1, 0, 0, 1), False)
    assert list(read_results(tmp_path)) == [2]
    assert counts(ScriptedLLM().run(tmp_path)) == (1, 0, 1, 0)


def test_ctrl_c_keeps_what_is_finished_and_the_next_run_does_the_rest(tmp_path):
    def script(sequence):
        if sequence.request.prompt_token_ids[0] == 3:
            signal.raise_signal(signal.SIGINT)
        return 5

    before = signal.getsignal(signal.SIGINT)
    write_requests(tmp_path, *({"prompt": [number]} for number in range(1, 6)))
    summary = ScriptedLLM(script).run(tmp_path, max_in_flight=1)
    assert (counts(summary), summary.interrupted) == ((2, 0, 0, 3), True)
    assert str(summary) == ("interrupted: 5 requests: 2 completed; 0 failed; 3 unfinished, which the next run does")
    assert list(read_results(tmp_path)) == [1, 2]
    assert signal.getsignal(signal.SIGINT) is before
    llm = ScriptedLLM()
    summary = llm.run(tmp_path)
    assert (counts(summary), summary.interrupted) == ((3, 0, 2, 0), False)
    assert llm.prompts == [3, 4, 5]


def test_ctrl_c_in_the_last_step_ends_nothing(tmp_path):
    def script(sequence):
        if sequence.num_output == 2:
            signal.raise_signal(signal.SIGINT)
        return 5

    write_requests(tmp_path, {"prompt": [1]})
    summary = ScriptedLLM(script).run(tmp_path)
    assert (counts(summary), summary.interrupted) == ((1, 0, 0, 0), False)


def test_a_second_ctrl_c_raises_and_the_file_can_still_be_gone_on_with(tmp_path):
    def script(sequence):
        if sequence.request.prompt_token_ids[0] == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        return 5

    write_requests(tmp_path, {"prompt": [1]}, {"prompt": [2]}, {"prompt": [3]})
    with pytest.raises(KeyboardInterrupt):
        ScriptedLLM(script).run(tmp_path, max_in_flight=1)
    assert list(read_results(tmp_path)) == [1]
    assert counts(ScriptedLLM().run(tmp_path)) == (2, 0, 1, 0)


def test_a_disk_that_is_full_ends_the_run_and_the_half_line_is_done_again(tmp_path, monkeypatch):
    from jaxllm.batch.results_file import ResultsFile

    append, appended = ResultsFile.append, []

    def full_at_the_second(self, record):
        appended.append(record)
        if len(appended) == 2:
            self._file.write(b'{"line": 2, "custom')
            raise OSError(28, "No space left on device")
        append(self, record)

    write_requests(tmp_path, {"prompt": [1]}, {"prompt": [2]}, {"prompt": [3]})
    with monkeypatch.context() as patch:
        patch.setattr(ResultsFile, "append", full_at_the_second)
        with pytest.raises(OSError, match="No space"):
            ScriptedLLM().run(tmp_path, max_in_flight=1)
    llm = ScriptedLLM()
    assert counts(llm.run(tmp_path)) == (2, 0, 1, 0)
    assert llm.prompts == [2, 3]


def test_lines_go_over_the_defaults_which_are_the_models_unless_given(tmp_path):
    write_requests(tmp_path, {"prompt": [1]}, {"prompt": [2], "max_tokens": 1})
    ScriptedLLM().run(tmp_path)
    assert [len(result["outputs"][0]["token_ids"]) for result in read_results(tmp_path).values()] == [1, 3]
    (tmp_path / "results.jsonl").unlink()
    ScriptedLLM().run(tmp_path, sampling_params=DEFAULTS.replace(max_tokens=2))
    assert [len(result["outputs"][0]["token_ids"]) for result in read_results(tmp_path).values()] == [1, 2]
    with pytest.raises(ParameterError, match="sampling_params"):
        ScriptedLLM().run(tmp_path, sampling_params={"max_tokens": 2})


def test_seeds_that_follow_from_the_engines_are_those_of_an_uninterrupted_run(tmp_path):
    params = SamplingParams(max_tokens=1)
    write_requests(tmp_path, {"prompt": [1]}, {"prompt": [2], "seed": 9}, {"prompt": [3]})
    ScriptedLLM(lambda sequence: RuntimeError("boom"), seed=4).run(tmp_path, sampling_params=params, max_in_flight=1)
    ScriptedLLM(seed=4).run(tmp_path, sampling_params=params, retry_failed=True)
    seeds = {name: result["outputs"][0]["seed"] for name, result in read_results(tmp_path).items()}
    assert seeds == {1: derived_seed(4, 1), 2: 9, 3: derived_seed(4, 3)}


def test_results_can_go_to_a_stream(tmp_path):
    write_requests(tmp_path, {"prompt": [1]}, "bad")
    stream = io.BytesIO()
    for _ in range(2):  # nothing is taken up
        assert counts(run_batch(ScriptedLLM(), tmp_path / "requests.jsonl", stream, use_tqdm=False)) == (1, 1, 0, 0)
    assert [json.loads(line)["line"] for line in stream.getvalue().splitlines()] == [2, 1, 2, 1]


def test_the_bar_counts_requests_from_where_the_last_run_ended(tmp_path):
    class Bar:
        def __init__(self, **arguments):
            self.arguments, self.count = arguments, arguments["initial"]
            bars.append(self)

        def update(self, count):
            self.count += count

        def set_postfix_str(self, text, refresh):
            assert text.endswith(" tokens/s")

        def close(self):
            self.closed = True

    bars = []
    write_requests(tmp_path, {"prompt": [1]}, "bad")
    names = tmp_path / "requests.jsonl", tmp_path / "results.jsonl"
    run_batch(ScriptedLLM(), *names, use_tqdm=Bar)
    write_requests(tmp_path, {"prompt": [1]}, "bad", {"prompt": [3]})
    run_batch(ScriptedLLM(), *names, use_tqdm=Bar)
    assert [(bar.arguments["initial"], bar.arguments["total"], bar.count, bar.closed) for bar in bars] == [
        (0, 2, 2, True), (2, 3, 3, True)]


def test_outputs_without_a_limit_are_said_once(tmp_path, caplog):
    write_requests(tmp_path, {"prompt": [1] * 60}, {"prompt": [2] * 60}, {"prompt": [1], "max_tokens": 1})
    ScriptedLLM().run(tmp_path, sampling_params=SamplingParams())
    assert [record.message for record in caplog.records] == [
        "line 1 sets no max_tokens, nor do the defaults: outputs may run to the end of the context, 64 tokens"]


def test_an_empty_file_is_a_batch_of_nothing(tmp_path):
    write_requests(tmp_path)
    assert ScriptedLLM().run(tmp_path).total == 0
