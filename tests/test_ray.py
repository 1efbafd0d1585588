"""Generation over Ray Data: rows of every form, errors that stay in their rows, and a local cluster."""

import json

import pytest
from tiny_folder import write_tiny_folder

from jaxllm import LLM, ParameterError, SamplingParams, UnsupportedModelError
from jaxllm.ray import OUTPUT_COLUMNS, BatchGenerator, generate

pa = pytest.importorskip("pyarrow", reason="jaxllm[ray] is not installed: no pyarrow")

SIZES = {"max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 32, "kv_cache_bytes": 1 << 19,
         "dtype": "float32", "block_size": 16}
PARAMS = SamplingParams(max_tokens=6, temperature=0.0)
IDS = [104, 105, 106]
MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(str(folder), **SIZES)


@pytest.fixture(scope="module")
def generator(folder):
    return BatchGenerator(str(folder), PARAMS, **SIZES)


def test_rows_of_each_form_give_what_the_llm_gives(generator, llm):
    batch = pa.table({
        "label": [7, 8, 9],
        "prompt": ["Once upon", None, None],
        "prompt_token_ids": pa.array([None, IDS, None], pa.list_(pa.int64())),
        "messages": [None, None, [{**MESSAGES[0], "tool_calls": None}]],
    })
    result = generator(batch)
    expected = [*llm.generate(["Once upon", IDS], PARAMS), *llm.chat(MESSAGES, PARAMS)]
    assert result.column_names == [*batch.column_names, *OUTPUT_COLUMNS]
    rows = result.to_pylist()
    assert [row["label"] for row in rows] == [7, 8, 9]
    assert [row["text"] for row in rows] == [output.outputs[0].text for output in expected]
    assert [row["outputs"][0]["token_ids"] for row in rows] == [output.outputs[0].token_ids for output in expected]
    assert [row["num_prompt_tokens"] for row in rows] == [len(output.prompt_token_ids) for output in expected]
    assert [row["error"] for row in rows] == [None] * 3


def test_sampling_parameters_of_a_row_go_over_the_calls(generator, llm):
    structs = pa.table({"prompt": ["a", "b"], "sampling_params": [
        {"n": 2, "seed": 5, "temperature": 0.9, "max_tokens": None}, {"n": None, "seed": None, "max_tokens": 2}]})
    texts = pa.table({"prompt": ["a", "b"], "sampling_params": [
        json.dumps({"n": 2, "seed": 5, "temperature": 0.9}), json.dumps({"max_tokens": 2, "logprobs": 1})]})
    first, second = generator(structs), generator(texts)
    assert first.schema.remove_metadata().field("outputs") == second.schema.field("outputs")
    wanted = llm.generate(["a"], PARAMS.replace(n=2, seed=5, temperature=0.9))[0]
    for rows in (first.to_pylist(), second.to_pylist()):
        assert [sample["token_ids"] for sample in rows[0]["outputs"]] == [s.token_ids for s in wanted.outputs]
        assert len(rows[1]["outputs"][0]["token_ids"]) == 2
    assert first.to_pylist()[1]["outputs"][0]["logprobs"] is None
    assert [line["rank"] for line in second.to_pylist()[1]["outputs"][0]["logprobs"]] == [1, 1]


def test_a_row_that_fails_keeps_its_error_and_the_others_go_on(generator):
    bad = ['{"temperature": -1}', '{"temprature": 1}', "{", "[]", '{"prompt": "b"}', None, None]
    batch = pa.table({"prompt": ["a"] * 5 + ["x" * 500, "fine"], "sampling_params": bad})
    rows = generator(batch).to_pylist()
    assert [row["error"] is None for row in rows] == [False] * 6 + [True]
    assert [row["error"]["parameter"] for row in rows[:5]] == [
        "temperature", "temprature", "sampling_params", "sampling_params", "sampling_params.prompt"]
    assert all(row["outputs"] == [] and row["text"] is None for row in rows[:6])
    assert rows[6]["outputs"][0]["finish_reason"] in ("length", "stop")


def test_a_row_needs_one_prompt(generator):
    batch = pa.table({"prompt": ["a", None], "messages": [MESSAGES, None]})
    errors = [row["error"]["message"] for row in generator(batch).to_pylist()]
    assert all("exactly one of prompt, prompt_token_ids, messages" in message for message in errors)


def test_columns_that_cannot_be_are_refused(generator):
    with pytest.raises(ParameterError, match=r"a column of prompt, prompt_token_ids, messages"):
        generator(pa.table({"question": ["a"]}))
    with pytest.raises(ParameterError, match=r"no column 'text'"):
        generator(pa.table({"prompt": ["a"], "text": ["b"]}))


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UnsupportedModelError, match=r"pip install 'jaxllm\[ray\]'"):
        generate(None, "model")


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray", reason="jaxllm[ray] is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
        yield ray
        ray.shutdown()


@pytest.mark.sweep
def test_two_replicas_on_a_local_cluster_keep_order_and_errors(cluster, folder, llm):
    from ray import data

    rows = [{"id": number, "prompt": "x" * 500 if number == 5 else f"Row {number}"} for number in range(16)]
    dataset = data.from_items(rows, override_num_blocks=4)
    result = generate(dataset, str(folder), PARAMS, replicas=2, num_cpus=1, batch_size=3, llm=SIZES).take_all()
    assert [row["id"] for row in result] == list(range(16))
    assert [row["id"] for row in result if row["error"] is not None] == [5]
    expected = llm.generate([row["prompt"] for row in rows], PARAMS)
    assert [row["text"] for row in result if row["id"] != 5] == [
        output.outputs[0].text for number, output in enumerate(expected) if number != 5]
    with pytest.raises(ParameterError, match=r"seed=3 is not allowed: None"):
        generate(dataset, str(folder), llm={"seed": 3})
    with pytest.raises(ParameterError, match=r"replicas=0 is not allowed"):
        generate(dataset, str(folder), replicas=0)
