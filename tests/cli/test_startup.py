"""What a start of the program chooses."""

from __future__ import annotations

import gc
import json

import pytest

from jaxllm.cli.options import EngineOptions, ModelOptions, SamplingOptions
from jaxllm.cli.startup import enough_seqs, open_checkpoint, start, uncollected
from jaxllm.tokenization import from_folder


@pytest.mark.parametrize(("wanted", "chosen"), [(1, 1), (2, 8), (8, 8), (9, None), (500, None)])
def test_few_different_numbers_of_sequences_are_compiled_for(wanted, chosen):
    assert enough_seqs(wanted) == chosen


@pytest.mark.parametrize("enabled", [True, False])
def test_garbage_collection_is_afterwards_as_it_was(enabled):
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with uncollected():
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_a_tokenizer_can_come_from_another_model(folder, tmp_path):
    for file in folder.iterdir():
        if not file.name.startswith("tokenizer"):
            (tmp_path / file.name).symlink_to(file)
    checkpoint = open_checkpoint(ModelOptions(model=str(tmp_path), tokenizer=str(folder)))
    assert checkpoint.tokenizer.encode("abc") == from_folder(folder).encode("abc")


def test_the_models_recommendation_is_under_what_the_user_asks_for(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "generation_config.json").write_text(json.dumps({"temperature": 0.6, "top_p": 0.9, "do_sample": True}))
    checkpoint = open_checkpoint(ModelOptions(model=str(tmp_path)))
    params = checkpoint.sampling_params(SamplingOptions(top_p=0.5, max_tokens=3), n=2)
    assert (params.temperature, params.top_p, params.max_tokens, params.n) == (0.6, 0.5, 3, 2)


@pytest.mark.parametrize("given", [False, True])
def test_a_start_is_deterministic_when_that_is_asked_for(folder, monkeypatch, given):
    seen = {}
    monkeypatch.setattr("jaxllm.llm.LLM", lambda source, **arguments: seen.update(arguments))
    model = ModelOptions(model=str(folder))
    checkpoint = open_checkpoint(model)
    start(checkpoint, model, EngineOptions(deterministic=given), num_seqs=1, num_tokens=1,
          params=checkpoint.sampling_params(SamplingOptions(max_tokens=1)))
    assert seen["deterministic"] is given
