"""Embeddings and rewards: against a plain forward pass, the same bits however they are batched, refused where they
mean nothing."""

from __future__ import annotations

import json

import jax.numpy as jnp
import numpy as np
import plain_forward
import pytest
from safetensors.numpy import load_file, save_file
from support import bits, greedy
from tiny_folder import write_tiny_folder

import jaxllm
from jaxllm import LLM, CheckpointError, ParameterError, UnsupportedModelError
from jaxllm.loading import check_pooling
from jaxllm.pooling import HiddenStateParams

SIZES = {"dtype": "float32", "max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 96, "block_size": 8}
GENERATOR = np.random.default_rng(0)
PROMPTS = [GENERATOR.integers(0, 250, length).tolist() for length in (45, 1, 17, 8, 33, 16)]
HEAD = GENERATOR.normal(size=(3, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


def other_head(folder, target, architecture, rename=lambda name: name, **tensors):
    """The same model under another architecture, with other names, and more tensors."""
    write_tiny_folder(target, architectures=[architecture])
    stored = load_file(folder / "model.safetensors")
    save_file({**{rename(name): value for name, value in stored.items()}, **tensors}, target / "model.safetensors")
    return target


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(folder, **SIZES)


@pytest.fixture(scope="module")
def rewarding(folder, tmp_path_factory):
    path = tmp_path_factory.mktemp("reward") / "tiny"
    return LLM(other_head(folder, path, "LlamaForSequenceClassification", **{"score.weight": HEAD}), **SIZES)


def vectors(outputs):
    assert [output.error for output in outputs] == [None] * len(outputs)
    return [output.outputs.embedding for output in outputs]


def plain(llm, prompt):
    return np.asarray(plain_forward.hidden_states(llm.model_config, llm.engine.params, jnp.asarray(prompt))[-1])


def test_an_embedding_is_the_last_hidden_state_of_a_plain_forward_pass(llm):
    """float32, whose sums differ in order."""
    found = vectors(llm.embed(PROMPTS, normalize=False, use_tqdm=False))
    for prompt, vector in zip(PROMPTS, found, strict=True):
        np.testing.assert_allclose(vector, plain(llm, prompt), atol=1e-4)
    for vector, unit in zip(found, vectors(llm.embed(PROMPTS, use_tqdm=False)), strict=True):
        np.testing.assert_allclose(unit, vector / np.linalg.norm(vector), atol=1e-6)
    for vector, few in zip(found, vectors(llm.embed(PROMPTS, dimensions=5, use_tqdm=False)), strict=True):
        np.testing.assert_allclose(few, vector[:5] / np.linalg.norm(vector[:5]), atol=1e-6)


@pytest.mark.parametrize("options", [
    {"overlap": False, "enable_prefix_caching": False},
    pytest.param({"max_num_batched_tokens": 32}, marks=pytest.mark.sweep),
    pytest.param({"max_num_seqs": 1}, marks=pytest.mark.sweep),
    pytest.param({"kv_cache_bytes": 13 * 8 * 2 * 2 * 2 * 8 * 4}, marks=pytest.mark.sweep),
], ids=str)
def test_no_bit_depends_on_the_batch_the_chunks_or_the_cache(llm, folder, options):
    expected = vectors(llm.embed(PROMPTS, use_tqdm=False))
    other = LLM(folder, **{**SIZES, **options})
    assert vectors(other.embed(PROMPTS, use_tqdm=False)) == expected
    again = other.embed(PROMPTS[::-1], use_tqdm=False)
    assert vectors(again)[::-1] == expected
    assert any(output.num_cached_tokens for output in again) == other.engine.config.enable_prefix_caching
    assert [vectors(other.embed(prompt, use_tqdm=False))[0] for prompt in PROMPTS] == expected


def test_generating_beside_it_changes_neither(llm):
    alone = vectors(llm.embed(PROMPTS, normalize=False, use_tqdm=False))
    texts = [bits(output) for output in llm.generate(PROMPTS, greedy(6, logprobs=1), use_tqdm=False)]
    engine, pooled = llm.engine, HiddenStateParams(temperature=0.0, max_tokens=1)
    ids = [(engine.add_request(prompt, pooled), engine.add_request(prompt, greedy(6, logprobs=1)))
           for prompt in PROMPTS]
    done = {}
    while engine.has_unfinished():
        done |= {output.request_id: output for output in engine.step() if output.finished}
    assert [done[first].hidden_state.tolist() for first, _ in ids] == alone
    assert [bits(done[second]) for _, second in ids] == texts
    assert all(done[second].hidden_state is None for _, second in ids)


@pytest.mark.sweep
def test_nothing_is_compiled_for_it(folder):
    llm = LLM(folder, **SIZES)
    llm.warm_up()
    traces = dict(llm.engine._runner.programs.traces)
    llm.embed(PROMPTS, use_tqdm=False)
    assert dict(llm.engine._runner.programs.traces) == traces


def test_texts_are_encoded_and_outputs_say_of_what_they_are(llm):
    (output,) = llm.embed("hello", use_tqdm=False)
    assert isinstance(output, jaxllm.EmbeddingRequestOutput)
    assert output.prompt_token_ids == llm.get_tokenizer().encode("hello")
    assert llm.embed({"prompt_token_ids": output.prompt_token_ids}, use_tqdm=False)[0].outputs == output.outputs
    assert llm.embed([], use_tqdm=False) == []


def test_a_bad_prompt_carries_its_error_and_the_others_are_embedded(llm):
    bad, good = llm.embed([[999], PROMPTS[1]], use_tqdm=False)
    assert (bad.outputs, bad.error.parameter) == (None, "prompt_token_ids")
    assert good.error is None
    with pytest.raises(ParameterError, match="prompt_token_ids=999"):
        llm.embed([[999]], use_tqdm=False, raise_on_error=True)
    (long,) = llm.embed([[1] * 200], use_tqdm=False)
    assert "at most 95 tokens" in long.error.message
    (cut,) = llm.embed([[7] * 200 + PROMPTS[0]], truncate_prompt_tokens=45, use_tqdm=False)
    assert [cut.outputs.embedding] == vectors(llm.embed(PROMPTS[0], use_tqdm=False))


@pytest.mark.parametrize(("options", "name"), [
    ({"dimensions": 0}, "dimensions"), ({"dimensions": 33}, "dimensions"), ({"dimensions": 1.5}, "dimensions"),
    ({"normalize": 1}, "normalize"), ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
])
def test_arguments_out_of_range_are_named(llm, options, name):
    with pytest.raises(ParameterError) as caught:
        llm.embed(PROMPTS, use_tqdm=False, **options)
    assert caught.value.parameter == name


def test_newer_parameters_give_newer_embeddings(folder):
    llm = LLM(folder, **SIZES)
    llm.embed(PROMPTS, use_tqdm=False)
    params = llm.engine.params
    params["norm"]["weight"] = -params["norm"]["weight"]
    before = vectors(llm.embed(PROMPTS, use_tqdm=False))
    llm.update_params(params)
    after = llm.embed(PROMPTS, use_tqdm=False)
    assert [output.num_cached_tokens for output in after] == [0] * len(PROMPTS)
    np.testing.assert_array_equal(vectors(after), -np.asarray(before))


@pytest.mark.parametrize("architecture", ["LlamaModel", "LlamaForCausalLM"])
def test_a_decoder_saved_without_a_head_embeds(llm, folder, tmp_path, architecture):
    bare = LLM(other_head(folder, tmp_path / "bare", architecture, lambda name: name.removeprefix("model.")), **SIZES)
    assert vectors(bare.embed(PROMPTS, use_tqdm=False)) == vectors(llm.embed(PROMPTS, use_tqdm=False))
    (output,) = bare.generate([PROMPTS[0]], greedy(2), use_tqdm=False)
    if architecture == "LlamaForCausalLM":
        assert output.error is None
        return
    assert "without a language model's head" in output.error.message
    assert "LLM.embed" in bare.score([[1]], [[2]], use_tqdm=False)[0].error.message
    with pytest.raises(ParameterError, match=r"LLM\.embed"):
        list(bare.stream([PROMPTS[0]], greedy(2)))
    with pytest.raises(ParameterError, match="without a score head"):
        bare.reward(PROMPTS, use_tqdm=False)


def test_a_reward_is_the_head_times_the_last_hidden_state(rewarding, llm):
    outputs = rewarding.reward(PROMPTS, use_tqdm=False)
    states = [np.asarray(state, np.float64) for state in vectors(llm.embed(PROMPTS, normalize=False, use_tqdm=False))]
    assert [output.outputs.data for output in outputs] == [(HEAD.astype(np.float64) @ state).tolist()
                                                           for state in states]
    assert isinstance(outputs[0], jaxllm.RewardRequestOutput)
    assert [output.prompt_token_ids for output in outputs] == PROMPTS
    assert [output.outputs for output in rewarding.reward(PROMPTS[::-1], use_tqdm=False)][::-1] == [
        output.outputs for output in outputs]
    (bad,) = rewarding.reward([[999]], use_tqdm=False)
    assert (bad.outputs, bad.error.parameter) == (None, "prompt_token_ids")
    assert "LLM.reward" in rewarding.generate([PROMPTS[0]], greedy(2), use_tqdm=False)[0].error.message


@pytest.mark.parametrize(("tensors", "found"), [
    ({}, "none"), ({"score.weight": HEAD[:, 1:]}, r"\[3, 31\]"), ({"score.weight": HEAD[0]}, r"\[32\]"),
])
def test_a_head_that_does_not_fit_is_refused(folder, tmp_path, tensors, found):
    model = other_head(folder, tmp_path / "model", "LlamaForSequenceClassification", **tensors)
    with pytest.raises(CheckpointError, match=rf"score.weight should be \[labels, 32\], the checkpoint has {found}"):
        LLM(model, **SIZES)


def test_a_language_model_with_a_score_head_beside_is_refused(folder, tmp_path):
    with pytest.raises(CheckpointError, match=r"unexpected: score\.weight"):
        LLM(other_head(folder, tmp_path / "model", "LlamaForCausalLM", **{"score.weight": HEAD}), **SIZES)


def test_what_would_lose_the_head_is_refused(folder, tmp_path, llm):
    model = other_head(folder, tmp_path / "model", "LlamaForSequenceClassification", **{"score.weight": HEAD})
    for write in (lambda: jaxllm.convert(model, tmp_path / "new"),
                  lambda: jaxllm.quantize(model, tmp_path / "new", "int8")):
        with pytest.raises(ParameterError, match=r"score\.weight would be left out"):
            write()
    with pytest.raises(UnsupportedModelError, match="heads that score are read of safetensors"):
        LLM.from_params(json.loads((model / "config.json").read_text()), llm.engine.params)


def test_without_a_head_of_its_own_a_model_is_not_rewarded(llm):
    with pytest.raises(ParameterError, match="ForSequenceClassification"):
        llm.reward(PROMPTS, use_tqdm=False)


@pytest.mark.parametrize(("modes", "found"), [
    (["lasttoken"], None), (["mean_tokens"], "pooling_mode_mean_tokens"), ([], "no pooling_mode"),
    (["lasttoken", "cls_token"], "pooling_mode_cls_token, pooling_mode_lasttoken"),
])
def test_a_model_that_pools_otherwise_is_refused(folder, tmp_path, modes, found):
    model = write_tiny_folder(tmp_path / "model")
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32} | {
        f"pooling_mode_{mode}": mode in modes for mode in ("cls_token", "mean_tokens", "lasttoken")}))
    if found is None:
        check_pooling(model)
        return
    with pytest.raises(UnsupportedModelError, match=f"has {found}; supported is pooling_mode_lasttoken alone"):
        check_pooling(model)


def test_embedding_asks_how_a_model_pools(llm, monkeypatch):
    asked = []
    monkeypatch.setattr("jaxllm.llm.check_pooling", asked.append)
    llm.embed(PROMPTS[1], use_tqdm=False)
    assert asked == [llm._path]


def test_an_architecture_of_no_family_stays_unknown(folder, tmp_path):
    for name in ("UnheardModel", "UnheardForSequenceClassification"):
        with pytest.raises(UnsupportedModelError, match=name):
            LLM(other_head(folder, tmp_path / name, name), **SIZES)
