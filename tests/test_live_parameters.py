"""Parameters that training code holds and changes: used where they are, replaced without compiling, never mixed up."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import plain_forward
import pytest
from flax import nnx
from param_layouts import LAYOUTS, hugging_face, stacked, to_own
from support import bits
from tiny_folder import CONFIG, write_tiny_folder

from jaxllm import LLM, EngineError, ParameterError, SamplingParams
from jaxllm.models.decoder import Decoder
from jaxllm.models.model import build_model
from jaxllm.models.registry import family_of
from jaxllm.weights.trees import flatten

SIZES = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "max_model_len": 96, "block_size": 4, "kv_cache_bytes": "1M"}
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=1, prompt_logprobs=0)
PLAIN = GREEDY.replace(prompt_logprobs=None)
PROMPTS = [{"prompt_token_ids": ids} for ids in ([1, 2, 3, 4, 5, 6, 7, 8, 9], [200, 100, 50, 25, 12])]


def decoder_config(**changes):
    return family_of({**CONFIG, **changes}).decoder_config({**CONFIG, **changes})


def made(seed=0, dtype="float32", **changes):
    """A config, and random parameters in its own layout."""
    config = decoder_config(**changes)
    return config, build_model(config, jnp.dtype(dtype)).init(seed, scale=0.3)


def pointers(tree):
    return {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(tree) if leaf.ndim}


def answers(llm, params=GREEDY):
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    assert [output.error for output in outputs] == [None] * len(PROMPTS)
    return outputs


def numbers(outputs):
    """Token ids, and the log-probabilities of prompts and outputs."""
    return ([output.outputs[0].token_ids for output in outputs],
            [entry.logprob for output in outputs for line in (*output.prompt_logprobs[1:], *output.outputs[0].logprobs)
             for entry in line.values()])


@contextlib.contextmanager
def counted_compilations():
    """How often JAX traces, lowers or compiles anything within."""
    events = []

    def listener(name, *_, **__):
        if name.startswith("/jax/core/compile"):
            events.append(name)

    jax.monitoring.register_event_duration_secs_listener(listener)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listener)


@pytest.fixture(scope="module")
def reference():
    config, own = made()
    return answers(LLM.from_params(config, own, **SIZES))


@pytest.mark.parametrize("layout", [name if name in ("own", "nnx.State", "Hugging Face") else pytest.param(
    name, marks=pytest.mark.sweep) for name in LAYOUTS])
def test_every_layout_is_used_where_it_is_and_answers_alike(reference, layout):
    config, own = made()
    given = LAYOUTS[layout](config, own)
    llm = LLM.from_params(dict(CONFIG), given, **SIZES)
    assert pointers(llm.engine.params) == pointers(given)
    found = answers(llm)
    if layout.startswith("Hugging Face"):  # gate and up are products of their own there, rounded in between
        assert numbers(found)[0] == numbers(reference)[0]
        np.testing.assert_allclose(numbers(found)[1], numbers(reference)[1], atol=1e-5)
    else:
        assert [bits(output) for output in found] == [bits(output) for output in reference]


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


def test_numpy_arrays_are_copied_as_their_owner_may_change_them(reference):
    config, own = made()
    given = jax.tree.map(np.array, own)
    llm = LLM.from_params(config, given, **SIZES)
    for leaf in jax.tree.leaves(given):
        leaf[...] = np.nan
    assert [bits(output) for output in answers(llm)] == [bits(output) for output in reference]


def test_the_tree_that_an_engine_hands_out_is_the_callers_to_change(reference):
    config, own = made()
    llm = LLM.from_params(config, own, **SIZES)
    for tree in (own, llm.engine.params):
        tree["norm"]["weight"] = -tree["norm"]["weight"]
        tree["layers"][0]["mlp"].clear()
    assert [bits(output) for output in answers(llm)] == [bits(output) for output in reference]


def test_a_mesh_of_one_device_costs_no_copy(reference):
    config, own = made()
    mesh = jax.make_mesh((1, 1), ("data", "tensor"))
    spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    given = jax.tree.map(lambda leaf: jax.device_put(leaf, spread), own)
    llm = LLM.from_params(config, given, mesh=mesh, **SIZES)
    assert pointers(llm.engine.params) == pointers(given)
    assert [bits(output) for output in answers(llm)] == [bits(output) for output in reference]


_ON_TWO_DEVICES = """
import jax
from test_live_parameters import LLM, PLAIN, SIZES, ParameterError, answers, bits, made

config, own = made()
mesh = jax.make_mesh((2,), ("data",))
spread = jax.tree.map(lambda leaf: jax.device_put(leaf, jax.NamedSharding(mesh, jax.P())), own)
try:
    LLM.from_params(config, spread, **SIZES)
except ParameterError as error:
    print(str(error).replace(chr(10), ""))
second = jax.sharding.Mesh(jax.devices()[1:], ("data",))
elsewhere = jax.tree.map(lambda leaf: jax.device_put(leaf, jax.devices()[1]), own)
found = [answers(LLM.from_params(config, given, mesh=where, **SIZES), PLAIN)
         for given, where in ((own, None), (elsewhere, None), (own, second), (elsewhere, second))]
for others in found[1:]:
    print([bits(output) for output in found[0]] == [bits(output) for output in others])
"""


@pytest.mark.sweep
def test_on_a_machine_with_two_devices_either_can_be_the_engines():
    tests = str(Path(__file__).parent)
    found = subprocess.run(
        [sys.executable, "-c", _ON_TWO_DEVICES], capture_output=True, text=True, check=True,
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2", "PYTHONPATH": tests})
    parts = ("embedding.weight lies on 2 devices, and this engine runs on one: make it with mesh=", *["True"] * 3)
    lines = found.stdout.splitlines()
    assert len(lines) == len(parts)
    assert all(part in line for part, line in zip(parts, lines, strict=True)), lines


def test_what_is_no_mesh_is_refused():
    config, own = made()
    for mesh in (1, "data", jax.devices()):
        with pytest.raises(ParameterError, match=r"mesh=.* is not allowed: a jax\.sharding\.Mesh"):
            LLM.from_params(config, own, mesh=mesh, **SIZES)


def test_all_that_does_not_fit_is_listed_at_once_and_the_old_parameters_go_on():
    config, own = made()
    llm = LLM.from_params(config, own, **SIZES)
    expected = [bits(output) for output in answers(llm)]
    wrong = flatten(own)
    del wrong["layers.1.mlp.down.weight"]
    wrong["layers.2.mlp.down.weight"] = jnp.ones((3, 5))
    wrong["embedding.weight"] = wrong["embedding.weight"][1:]
    wrong["norm.weight"] = wrong["norm.weight"].astype(jnp.int32)
    wrong["layers.0.mlp_norm.weight"] = "a text"
    for refuse in (llm.update_params, lambda params: LLM.from_params(config, params, **SIZES)):
        with pytest.raises(ParameterError) as caught:
            refuse(wrong)
        assert caught.value.parameter == "params"
        assert str(caught.value).splitlines()[1:] == [
            "  missing: layers.1.mlp.down.weight, of shape [32, 48]",
            "  unexpected: layers.2.mlp.down.weight, of shape [3, 5]",
            "  wrong type: layers.0.mlp_norm.weight is a str, not an array",
            "  wrong type: norm.weight of shape [32] holds int32, not floating-point numbers",
            "  wrong shape: embedding.weight should be [264, 32], params has embedding.weight [263, 32]",
        ]
    assert [bits(output) for output in answers(llm)] == expected


def test_what_does_not_fit_is_named_in_the_layout_that_it_is_in():
    config, own = made()
    theirs = hugging_face(config, own)
    k = theirs.pop("model.layers.0.self_attn.k_proj.weight")
    theirs["model.layers.1.self_attn.k_proj.weight"] = k[:, 1:]
    with pytest.raises(ParameterError) as caught:
        LLM.from_params(config, theirs, **SIZES)
    assert str(caught.value).splitlines()[1:] == [
        "  missing: model.layers.0.self_attn.k_proj.weight, of rows of layers.0.attention.qkv.weight, which has shape "
        "[64, 32]",
        "  wrong shape: layers.1.attention.qkv.weight should be [64, 32], params has "
        "model.layers.1.self_attn.q_proj.weight [32, 32], model.layers.1.self_attn.k_proj.weight [16, 31], "
        "model.layers.1.self_attn.v_proj.weight [16, 32]",
    ]
    layers = stacked(own)
    down = layers["layers"]["mlp"].pop("down")
    layers["layers"]["mlp_norm"] = {"weight": jnp.ones((3, 32))}
    with pytest.raises(ParameterError) as caught:
        LLM.from_params(config, layers, **SIZES)
    assert str(caught.value).splitlines()[1:] == [
        f"  missing: layers.mlp.down.weight, of shape {list(down['weight'].shape)}",
        "  wrong shape: layers.mlp_norm.weight should be [2, 32], params has layers.mlp_norm.weight [3, 32]",
    ]


def test_long_lists_of_misfits_are_cut():
    config, own = made()
    with pytest.raises(ParameterError, match=r"and 5 more$"):
        LLM.from_params(config, {**own, **{f"x{number}": jnp.ones(1) for number in range(35)}}, **SIZES)


def test_a_config_of_another_model_is_refused():
    _, own = made()
    with pytest.raises(ParameterError, match=r"embedding.weight should be \[300, 32\]"):
        LLM.from_params({**CONFIG, "vocab_size": 300}, own, **SIZES)
    with pytest.raises(ParameterError, match=r"missing: layers.2.attention.qkv.weight"):
        LLM.from_params({**CONFIG, "num_hidden_layers": 3}, own, **SIZES)
    with pytest.raises(ParameterError, match=r"missing: head.weight, of shape \[264, 32\]"):
        LLM.from_params({**CONFIG, "tie_word_embeddings": False}, own, **SIZES)


def test_a_tied_checkpoints_head_is_not_asked_about():
    config, own = made()
    theirs = hugging_face(config, own)
    LLM.from_params(config, {**theirs, "lm_head.weight": theirs["model.embed_tokens.weight"]}, **SIZES)


@pytest.mark.parametrize(("config", "message"), [
    (None, "config=None"), (3, "config=3"), ("", "config=''"),
    ({"architectures": ["NoSuchModel"]}, "'NoSuchModel' is not supported"), ("no/such/folder/x", "no such file"),
])
def test_a_config_that_is_none_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        LLM.from_params(config, {}, **SIZES)


def test_a_config_of_no_family_is_refused():
    config, own = made()
    object.__setattr__(config, "family", "none")
    with pytest.raises(ParameterError, match=r"config.family='none' is not allowed: one of llama, "):
        LLM.from_params(config, own, **SIZES)


@pytest.mark.parametrize(("params", "message"), [
    ([1, 2], "a nested dict of arrays"), (jnp.ones(3), "a nested dict of arrays"), ({("a", "b"): 1}, "strings"),
    ({1.5: jnp.ones(3)}, "strings"), ({"a.b": 1, "a": {"b": 2}}, "differ"), (None, "missing: embedding.weight"),
    ({}, "missing: embedding.weight"),
])
def test_what_is_no_tree_of_parameters_is_refused(params, message):
    with pytest.raises(ParameterError, match=message) as caught:
        LLM.from_params(decoder_config(), params, **SIZES)
    assert caught.value.parameter == "params"


def test_a_module_is_refused_in_favour_of_its_state():
    config = decoder_config()
    with pytest.raises(ParameterError, match=r"nnx\.state\(module"):
        LLM.from_params(config, Decoder(config, jnp.float32), **SIZES)
    with pytest.raises(ParameterError, match=r"embedding.weight is a ShapeDtypeStruct, not an array"):
        LLM.from_params(config, nnx.state(Decoder(config, jnp.float32)), **SIZES)


def test_arrays_that_are_gone_or_not_there_yet_are_named():
    config, own = made()
    llm = LLM.from_params(config, own, **SIZES)
    given = jax.tree.map(jnp.copy, own)
    given["norm"]["weight"].delete()
    with pytest.raises(ParameterError, match=r"norm.weight was deleted or donated"):
        llm.update_params(given)
    with pytest.raises(ParameterError, match=r"embedding.weight is being traced by JAX"):
        jax.jit(llm.update_params)(own)
    answers(llm)


@pytest.mark.parametrize("name", ["model", "revision", "load_format", "skip_tokenizer_init"])
def test_arguments_that_say_where_a_checkpoint_is_are_refused(name):
    config, own = made()
    with pytest.raises(ParameterError, match=rf"{name}='x' is not allowed: an argument of LLM\(\.\.\.\) alone"):
        LLM.from_params(config, own, **{name: "x"})


def test_other_arguments_are_those_of_the_class():
    config, own = made()
    with pytest.raises(ParameterError, match="max_num_seqs=0"):
        LLM.from_params(config, own, **{**SIZES, "max_num_seqs": 0})
    with pytest.raises(ParameterError, match="quantization='gguf'"):
        LLM.from_params(config, own, quantization="gguf", **SIZES)
    with pytest.raises(ParameterError, match="no_such_argument=1 is not allowed"):
        LLM.from_params(config, own, no_such_argument=1)


def test_without_a_tokenizer_texts_are_refused():
    config, own = made()
    llm = LLM.from_params(config, own, **SIZES)
    (output,) = llm.generate("a text", PLAIN, use_tqdm=False)
    assert "token ids" in output.error.message
    assert "without a tokenizer" in llm.score(["a"], ["b"], use_tqdm=False)[0].error.message
    assert answers(llm)[0].outputs[0].text == ""
