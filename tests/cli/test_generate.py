"""``jaxllm generate`` against ``LLM`` on the same tiny model."""

from __future__ import annotations

import json

import pytest

from jaxllm import SamplingParams

TALK = [{"role": "user", "content": "hi"}]


def greedy(**changes):
    return SamplingParams(**{"temperature": 0.0, "max_tokens": 10, **changes})


def test_one_prompt_is_answered_as_chat_and_text_alone_is_on_standard_output(generate, llm):
    result = generate("hi", "--max-tokens", 10)
    assert result.exit_code == 0
    (expected,) = llm.chat(TALK, greedy())
    assert result.stdout == expected.outputs[0].text + "\n"
    assert "TTFT" in result.stderr
    assert "10 tokens, finish: length" in result.stderr


def test_deterministic_changes_nothing_on_a_cpu(generate):
    plain, deterministic = (generate("hi", "-q", "--max-tokens", 10, *flag) for flag in ((), ("--deterministic",)))
    assert deterministic.exit_code == 0
    assert deterministic.stdout == plain.stdout


def test_raw_completes_standard_input_as_it_is_without_its_last_newline(generate, llm):
    result = generate("--raw", "--max-tokens", 10, "-q", stdin="once\nupon\n")
    assert (result.exit_code, result.stderr) == (0, "")
    (expected,) = llm.generate("once\nupon", greedy())
    assert result.stdout == expected.outputs[0].text + "\n"


def test_json_has_a_line_for_each_sample_with_all_that_is_known(generate, llm):
    result = generate("hi", "ho", "--json", "-n", 2, "--seed", 5, "--logprobs", 1, "--max-tokens", 6,
                      "--system", "short", "--stop", "zzz")
    assert result.exit_code == 0
    records = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(each["prompt_index"], each["prompt"], each["index"]) for each in records] == [
        (0, "hi", 0), (0, "hi", 1), (1, "ho", 0), (1, "ho", 1)]
    talks = [[{"role": "system", "content": "short"}, {"role": "user", "content": text}] for text in ("hi", "ho")]
    params = SamplingParams(n=2, seed=5, max_tokens=6, logprobs=1, stop="zzz")
    outputs = llm.chat(talks, params)
    samples = [(output, sample) for output in outputs for sample in output.outputs]
    for record, (output, sample) in zip(records, samples, strict=True):
        for name in ("text", "token_ids", "finish_reason", "stop_reason", "seed", "cumulative_logprob"):
            assert record[name] == getattr(sample, name)
        assert record["num_prompt_tokens"] == len(output.prompt_token_ids)
        assert record["error"] is None
        assert 0 < record["metrics"]["time_to_first_token"] <= record["metrics"]["total_time"]
        for line, token_id, chosen in zip(record["logprobs"], sample.token_ids, sample.logprobs, strict=True):
            assert (line["token_id"], line["logprob"]) == (token_id, chosen[token_id].logprob)
            assert [entry["token_id"] for entry in line["top"]] == list(chosen)


def test_a_prompt_that_fails_does_not_stop_the_others_but_the_exit_code_says_so(generate, llm, tmp_path):
    (tmp_path / "prompts.txt").write_text("hi\n\n" + "x" * 300 + "\nhi\n")
    result = generate("--file", tmp_path / "prompts.txt", "--max-tokens", 10)
    assert result.exit_code == 1
    text = llm.chat(TALK, greedy())[0].outputs[0].text
    assert result.stdout == f"==> prompt 1 <==\n{text}\n\n==> prompt 3 <==\n{text}\n\n"
    assert "error: prompt 2: " in result.stderr
    assert "max_model_len=128" in result.stderr
    records = [json.loads(line) for line in
               generate("-f", tmp_path / "prompts.txt", "--json", "--max-tokens", 1).stdout.splitlines()]
    assert [record["error"] and record["error"]["type"] for record in records] == [None, "ParameterError", None]


@pytest.mark.parametrize(("arguments", "stdin", "message"), [
    (["hi", "--file", "x"], None, "not both"),
    ([], "", "standard input is empty"),
    (["-f", "-"], " \n\n", "holds no prompts"),
    (["hi", "--logprobs", "1"], None, "only shown with --json"),
    (["hi", "--raw", "--system", "x"], None, "needs the chat template"),
    (["hi", "--temperature", "-1"], None, "temperature=-1.0 is not allowed"),
    (["hi", "--max-tokens", "0"], None, "max_tokens=0 is not allowed"),
    (["hi", "--kv-cache-bytes", "lots"], None, "not a number of bytes"),
    (["hi", "--no-such-option"], None, "no-such-option"),
])
def test_wrong_usage_is_exit_code_2_before_any_model_is_opened(run, arguments, stdin, message):
    result = run("generate", "-m", "/no/such/model", *arguments, stdin=stdin)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert result.stdout == ""


@pytest.mark.parametrize(("arguments", "stdin", "message"), [
    (["-m", "/no/such/model", "hi"], None, "error: no such file or folder: '/no/such/model'\n"),
    (["-f", "/no/such/prompts"], None, "No such file or directory"),
    ([], b"\xff\xfe", "text in UTF-8 (invalid start byte at byte 0)"),
    (["hi", "--dtype", "int7"], None, "error: dtype='int7' is not allowed"),
    (["hi", "--max-model-len", "999"], None, "error: max_model_len=999 is not allowed"),
])
def test_an_error_is_one_line_and_exit_code_1(run, folder, arguments, stdin, message):
    result = run("generate", "-q", "-m", folder, *arguments, stdin=stdin)
    assert result.exit_code == 1
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


def test_debug_shows_the_traceback(run):
    with pytest.raises(AssertionError, match="no such file or folder"):
        run("generate", "-m", "/no/such/model", "hi", "--debug")


def test_a_model_without_a_chat_template_completes_the_text_and_says_so(run, folder, small, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for file in folder.iterdir():
        (bare / file.name).symlink_to(file)
    (bare / "tokenizer_config.json").unlink()
    (bare / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    options = ("-m", bare, "--max-tokens", 4, *small)
    result = run("generate", *options, "hi")
    assert "no chat template" in result.stderr
    assert result.stdout == run("generate", *options, "--raw", "hi").stdout
    refused = run("generate", *options, "hi", "--system", "x")
    assert refused.exit_code == 1
    assert "system='x' is not allowed" in refused.stderr
