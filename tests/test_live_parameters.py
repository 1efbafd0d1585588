"""Parameters that training code holds and changes: used where they are, replaced without compiling, never mixed up."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import plain_forward
import pytest
from live_models import GREEDY, PLAIN, PROMPTS, SIZES, answers, counted_compilations, made, numbers, pointers, reference
from param_layouts import LAYOUTS, hugging_face, stacked, to_own
from support import bits
from tiny_folder import CONFIG, write_tiny_folder

from jaxllm import LLM, EngineError, ParameterError


@pytest.mark.parametrize("layout", [name if name in ("own", "nnx.State", "Hugging Face") else pytest.param(
    name, marks=pytest.mark.sweep) for name in LAYOUTS])
def test_every_layout_is_used_where_it_is_and_answers_alike(layout):
    config, own = made()
    given = LAYOUTS[layout](config, own)
    llm = LLM.from_params(dict(CONFIG), given, **SIZES)
    assert pointers(llm.engine.params) == pointers(given)
    found = answers(llm)
    if layout.startswith("Hugging Face"):  # gate and up are products of their own there, rounded in between
        assert numbers(found)[0] == numbers(reference())[0]
        np.testing.assert_allclose(numbers(found)[1], numbers(reference())[1], atol=1e-5)
    else:
        assert [bits(output) for output in found] == [bits(output) for output in reference()]


def test_parameters_answer_as_the_checkpoint_that_holds_them(tmp_path):
    folder = write_tiny_folder(tmp_path / "model")
    stored = LLM(folder, dtype="float32", **SIZES)
    for config in (folder, str(folder / "config.json")):
        live = LLM.from_params(config, stored.engine.params, folder, **SIZES)
        outputs = [llm.generate(["hello", "a"], PLAIN, use_tqdm=False) for llm in (stored, live)]
        assert [bits(output) for output in outputs[0]] == [bits(output) for output in outputs[1]]
        assert outputs[1][0].outputs[0].text == outputs[0][0].outputs[0].text
        assert live.engine.eos_token_ids == stored.engine.eos_token_ids


@pytest.mark.sweep
def test_small_vectors_that_come_in_parts_are_joined_and_matrices_stay_apart():
    hf = {"architectures": ["Qwen2ForCausalLM"]}
    config, own = made(**hf)
    own = jax.tree.map(lambda leaf: leaf + 0.1 if leaf.ndim == 1 else leaf, own)
    given = hugging_face(config, own)
    live = LLM.from_params({**CONFIG, **hf}, given, **SIZES)
    apart = [leaf for name, leaf in given.items() if ".bias" not in name]
    assert pointers(apart) < pointers(live.engine.params)
    expected = numbers(answers(LLM.from_params(config, own, **SIZES)))
    assert numbers(answers(live))[0] == expected[0]
    np.testing.assert_allclose(numbers(answers(live))[1], expected[1], atol=1e-5)


@functools.cache
def fresh(seed):
    """What an engine that never had other parameters says."""
    config, own = made(seed)
    return numbers(answers(LLM.from_params(config, own, **SIZES)))


FORMS = ["own", *(pytest.param(name, marks=pytest.mark.sweep) for name in ("stacked", "Hugging Face"))]


@pytest.mark.parametrize("layout", FORMS)
def test_an_engine_takes_newer_parameters_in_any_layout_without_compiling_its_programs(layout):
    config, own = made()
    llm = LLM.from_params(config, LAYOUTS[layout](config, own), **SIZES)
    answers(llm)
    programs = llm.engine._runner.programs
    before = dict(programs.traces), programs.num_executables
    for number, other in enumerate(LAYOUTS, 1):
        seed = number % 2
        llm.update_params(LAYOUTS[other](config, made(seed)[1]))
        found = numbers(answers(llm))
        assert found[0] == fresh(seed)[0]
        np.testing.assert_allclose(found[1], fresh(seed)[1], atol=1e-5)
        llm.update_params(llm.engine.params)
        assert numbers(answers(llm)) == found
    assert (dict(programs.traces), programs.num_executables) == before


CONTEXT = list(range(3, 16))
PAIRS = [(CONTEXT, [7, 8]), (CONTEXT, [9]), (CONTEXT, None), ([100, 101], [102, 103, 104])]
"""Contexts and continuations; ``None`` is what greedy sampling says."""


@pytest.mark.parametrize("layout", FORMS)
def test_parameters_that_an_optimizer_changes_every_step_are_scored_and_generate(layout):
    """The oracle is ``plain_forward``, without a cache; float32, whose sums differ in order: 1e-5."""
    config, own = made()
    params = jax.tree.map(jnp.copy, LAYOUTS[layout](config, own))
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, config.vocab_size, 24))
    optimizer = optax.adam(3e-2)
    state = optimizer.init(params)

    def plain(params, ids):
        return plain_forward.logprobs(config, to_own(config, params), ids)

    def train(params, state):
        def loss(params):
            lines = plain(params, tokens[:-1])
            return -jnp.take_along_axis(lines, tokens[1:, None], 1).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, updates), state

    # The old parameters' memory is given to the new: what an engine kept of them would be gone, or be nonsense.
    train, oracle = jax.jit(train, donate_argnums=(0, 1)), jax.jit(plain)
    llm = LLM.from_params(config, params, **SIZES)
    programs = llm.engine._runner.programs

    def evaluate():
        """Everything that is asked for in a step, as often: 8 tokens, greedily, and scores."""
        ids = list(CONTEXT)
        for _ in range(3):
            ids.append(int(oracle(params, jnp.asarray(ids + [0] * (24 - len(ids))))[len(ids) - 1].argmax()))
        greedy = ids[len(CONTEXT):]
        (output,) = llm.generate({"prompt_token_ids": CONTEXT}, GREEDY.replace(max_tokens=3), use_tqdm=False)
        (again,) = llm.generate({"prompt_token_ids": CONTEXT}, PLAIN.replace(max_tokens=3), use_tqdm=False)
        pairs = [(context, greedy if continuation is None else continuation) for context, continuation in PAIRS]
        scores = llm.score(*zip(*pairs, strict=True), use_tqdm=False)
        lines = [oracle(params, jnp.asarray((context + continuation + [0] * 24)[:24]))
                 for context, continuation in pairs]
        return greedy, output, again, pairs, scores, jax.device_get(lines)

    seen = []
    for step in range(4):
        with counted_compilations() as compilations:
            if step:
                params, state = train(params, state)
                llm.update_params(params)
            shared = pointers(llm.engine.params) == pointers(params)
            greedy, output, again, pairs, scores, lines = evaluate()
        assert shared
        # The first step compiles; the second, which is the first that trains, the optimizer.
        assert step < 2 or not compilations
        if step == 0:
            traces = dict(programs.traces), programs.num_executables
        assert (dict(programs.traces), programs.num_executables) == traces
        assert (output.num_cached_tokens, again.num_cached_tokens) == (0, 12)
        assert output.outputs[0].token_ids == again.outputs[0].token_ids == greedy
        assert output.outputs[0].logprobs == again.outputs[0].logprobs
        for (context, continuation), score, line in zip(pairs, scores, lines, strict=True):
            expected = line[np.arange(len(context) - 1, len(context) + len(continuation) - 1)]
            np.testing.assert_allclose(
                score.token_logprobs, expected[np.arange(len(continuation)), continuation], atol=1e-5)
            assert score.logprob == pytest.approx(sum(score.token_logprobs))
            assert score.is_greedy == (expected.argmax(-1).tolist() == continuation)
        assert scores[2].is_greedy
        seen.append([score.logprob for score in scores])
    assert len({tuple(line) for line in seen}) == 4


@pytest.mark.sweep
def test_a_preempted_request_never_meets_another_steps_keys():
    """What was computed is in host memory or the prefix cache when the weights change; neither is found again."""
    config, own = made()
    few = {**SIZES, "max_model_len": 32, "kv_cache_bytes": 12 * 4 * 2 * 2 * 2 * 8 * 4}
    llm = LLM.from_params(config, own, swap_space="1M", **few)
    long = [{"prompt_token_ids": [seed, *range(10, 26)]} for seed in range(4)]
    params = PLAIN.replace(max_tokens=12)

    def run(llm):
        return llm.generate(long, params, use_tqdm=False)

    run(llm)
    assert llm.stats().num_preemptions
    for _ in range(2):
        own = jax.tree.map(lambda leaf: leaf * 1.1, own)
        llm.update_params(own)
        outputs = run(llm)
        assert [output.num_cached_tokens for output in outputs] == [0] * 4
        assert [bits(output) for output in outputs] == [bits(output) for output in run(
            LLM.from_params(config, own, **SIZES))]


def test_parameters_do_not_change_under_a_request():
    config, own = made()
    llm = LLM.from_params(config, own, **SIZES)
    expected = answers(llm, PLAIN)
    llm.reset_prefix_cache()
    for prompt in PROMPTS:
        llm.engine.add_request(prompt, PLAIN)
    llm.engine.step()
    with pytest.raises(EngineError, match="unfinished"):
        llm.update_params(made(1)[1])
    outputs = {}
    while llm.engine.has_unfinished():
        outputs |= {output.request_id: output for output in llm.engine.step()}
    assert [bits(outputs[name]) for name in sorted(outputs)] == [bits(output) for output in expected]


@pytest.mark.parametrize("layout", FORMS)
def test_parameters_put_aside_come_back_in_their_form(layout):
    config, own = made()
    llm = LLM.from_params(config, LAYOUTS[layout](config, own), **SIZES)
    expected = [bits(output) for output in answers(llm)]
    structure = jax.tree.structure(llm.engine.params)
    num_bytes = len(pointers(llm.engine.params))
    llm.sleep()
    llm.wake_up()
    assert jax.tree.structure(llm.engine.params) == structure
    assert len(pointers(llm.engine.params)) == num_bytes
    assert [bits(output) for output in answers(llm)] == expected


@pytest.mark.sweep
def test_auto_keeps_the_parameters_dtype_and_another_one_converts():
    config, own = made(dtype="bfloat16")
    llm = LLM.from_params(config, own, **SIZES)
    assert {leaf.dtype for leaf in jax.tree.leaves(llm.engine.params)} == {jnp.dtype("bfloat16")}
    assert pointers(llm.engine.params) == pointers(own)
    wide = LLM.from_params(config, own, dtype="float32", **SIZES)
    assert {leaf.dtype for leaf in jax.tree.leaves(wide.engine.params)} == {jnp.dtype("float32")}
    mixed = {**own, "norm": {"weight": own["norm"]["weight"].astype(jnp.float32)}}
    with pytest.raises(ParameterError, match=r"dtype='auto'.*several: 13 in bfloat16, 1 in float32") as caught:
        LLM.from_params(config, mixed, **SIZES)
    assert caught.value.parameter == "dtype"
    converted = LLM.from_params(config, mixed, dtype="bfloat16", **SIZES)
    assert [bits(output) for output in answers(converted)] == [bits(output) for output in answers(llm)]


@pytest.mark.sweep
def test_int8_is_made_of_any_layout():
    config, own = made()
    found = [[bits(output) for output in answers(LLM.from_params(
        config, given, quantization="int8", **SIZES))] for given in (own, stacked(own), hugging_face(config, own))]
    assert found[0] == found[1] == found[2]
