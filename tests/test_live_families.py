"""Parameters in memory by the names of families whose checkpoints keep them otherwise than the decoder does."""

from __future__ import annotations

import json

import pytest
from models.fixture_models import FIXTURES
from safetensors.numpy import load_file
from support import bits

from jaxllm import LLM, SamplingParams

OPTIONS = {"dtype": "float32", "max_num_seqs": 2, "max_num_batched_tokens": 16, "max_model_len": 32, "block_size": 4,
           "kv_cache_bytes": "1M"}
PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=2)


@pytest.mark.parametrize("name", ["gpt2", *(pytest.param(name, marks=pytest.mark.sweep) for name in (
    "bloom", "falcon_7b", "falcon_40b", "gpt_neox", "phi3"))])
def test_parameters_by_a_checkpoint_s_names_are_those_of_its_folder(name):
    folder = FIXTURES / name
    given = LLM.from_params(json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors"),
                            None, **OPTIONS)
    read = LLM(folder, skip_tokenizer_init=True, **OPTIONS)
    prompt = {"prompt_token_ids": [1, 5, 9, 2, 7]}
    (expected,), (found,) = (llm.generate([prompt], PARAMS, use_tqdm=False) for llm in (read, given))
    assert found.error is None
    assert bits(found) == bits(expected)


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["deepseek_v3", "gpt_oss"])
def test_parameters_that_a_checkpoint_keeps_transposed_are_those_of_its_folder(name):
    """Tolerance: what is one product in a folder's model is several here, which add up in another order."""
    folder = FIXTURES / name
    given = LLM.from_params(json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors"),
                            None, **OPTIONS)
    read = LLM(folder, skip_tokenizer_init=True, **OPTIONS)
    (expected,), (found,) = (llm.generate([{"prompt_token_ids": [1, 5, 9, 2, 7]}], PARAMS, use_tqdm=False)
                             for llm in (read, given))
    assert found.outputs[0].token_ids == expected.outputs[0].token_ids
    assert found.outputs[0].cumulative_logprob == pytest.approx(expected.outputs[0].cumulative_logprob, abs=1e-4)
