"""Which files a model and its tokenizer come from, and which defaults come with them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
from tiny_folder import write_tiny_folder

from jaxllm.errors import CheckpointError, ParameterError
from jaxllm.generation_config import end_token_ids, sampling_defaults
from jaxllm.loading import open_source, read_tokenizer
from jaxllm.sampling_params import SamplingParams
from jaxllm.tokenization import from_folder
from jaxllm.weights import ConfigSource, SafetensorsSource, locate, resolve


@pytest.fixture
def folder(tmp_path):
    return write_tiny_folder(tmp_path / "tiny")


@pytest.fixture
def hub(folder, monkeypatch):
    """A hub where every repository is the tiny folder without weights; (repository, revision) that were asked for."""
    (folder / "model.safetensors").unlink()
    asked = []

    def download_configuration(repo, revision=None):
        asked.append((repo, revision))
        return folder

    monkeypatch.setattr(locate, "download_configuration", download_configuration)
    return asked


def test_dummy_weights_download_no_weights(hub):
    assert isinstance(open_source("org/name", "v1", "dummy"), ConfigSource)
    assert hub == [("org/name", "v1")]


def test_a_tokenizer_from_the_hub_comes_without_weights_and_in_its_own_revision(hub, folder):
    source = ConfigSource(folder)
    for revision in (None, "v2"):
        assert read_tokenizer(source, "org/other", revision).encode("abc") == from_folder(folder).encode("abc")
    assert hub == [("org/other", None), ("org/other", "v2")]
    assert read_tokenizer(source).encode("abc") == from_folder(folder).encode("abc")
    assert len(hub) == 2


def test_a_folder_has_no_revision(folder):
    with pytest.raises(ParameterError) as caught:
        read_tokenizer(resolve(folder), folder, "v1")
    assert caught.value.parameter == "tokenizer_revision"


@pytest.mark.parametrize("tokenizer", [5, "", b"x", ["x"]])
def test_what_names_no_tokenizer_is_refused(folder, tokenizer):
    with pytest.raises(ParameterError) as caught:
        read_tokenizer(resolve(folder), tokenizer)
    assert caught.value.parameter == "tokenizer"


def test_a_format_must_be_that_of_the_files(folder):
    assert isinstance(open_source(folder, load_format="safetensors"), SafetensorsSource)
    source = resolve(folder)
    assert open_source(source) is source
    for opened in (folder, source):
        with pytest.raises(ParameterError, match="load_format='gguf'"):
            open_source(opened, load_format="gguf")


@pytest.mark.parametrize(("entries", "wanted"), [
    ({}, {}), ({"temperature": 0.3, "top_k": 4}, {"temperature": 0.3, "top_k": 4}),
    ({"temperature": 0.3, "do_sample": False}, {"temperature": 0.0}),
    ({"do_sample": False, "max_new_tokens": 9, "repetition_penalty": 1.1},
     {"temperature": 0.0, "max_tokens": 9, "repetition_penalty": 1.1}),
    ({"temperature": None, "num_beams": 4}, {}), ({"temperature": -1}, {})])
def test_a_checkpoints_recommendations_are_taken_as_far_as_they_are_valid(folder, entries, wanted, caplog):
    (folder / "generation_config.json").write_text(json.dumps(entries))
    with caplog.at_level(logging.WARNING, "jaxllm"):
        assert sampling_defaults(resolve(folder)) == SamplingParams(**wanted)
    assert ("is ignored" in caplog.text) is (entries.get("temperature") == -1)


def test_overrides_come_on_top_and_must_be_valid(folder, tmp_path):
    (folder / "generation_config.json").write_text(json.dumps({"temperature": 0.3, "top_p": 0.9}))
    source = resolve(folder)
    assert sampling_defaults(source, override={"top_p": 0.5}) == SamplingParams(temperature=0.3, top_p=0.5)
    assert sampling_defaults(source, "vllm", {"top_p": 0.5}) == SamplingParams(top_p=0.5)
    assert sampling_defaults(source, override={}) == sampling_defaults(source)
    for wrong in ({"topp": 1}, {"top_p": 2}, [], "top_p", {"eos_token_id": 1}, {5: 1}):
        with pytest.raises(ParameterError) as caught:
            sampling_defaults(source, override=wrong)
        assert caught.value.parameter == "override_generation_config"
    for wrong in (tmp_path, str(tmp_path / "none"), 5, None, ""):
        with pytest.raises(ParameterError) as caught:
            sampling_defaults(source, wrong)
        assert caught.value.parameter == "generation_config"


def test_a_generation_config_that_cannot_be_read_is_a_checkpoint_error(folder, tmp_path):
    source = resolve(folder)
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        sampling_defaults(source, tmp_path)
    Path(tmp_path / "generation_config.json").unlink()
    Path(tmp_path / "generation_config.json").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        sampling_defaults(source, tmp_path)


def test_end_ids_come_from_all_files_and_without_a_tokenizer_from_those_of_the_model(folder):
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [65, 300]}))
    source = resolve(folder)
    assert end_token_ids(source, from_folder(folder)) == {65, 258}
    assert end_token_ids(source, None) == {65, 258}
