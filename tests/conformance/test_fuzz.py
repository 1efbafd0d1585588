"""Random parameters and prompts, sound and broken: nothing crashes, hangs, leaks a block or goes missing in silence."""

from __future__ import annotations

import functools
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import check_idle
from tiny_folder import write_tiny_folder

from jaxllm import LLM, ParameterError, SamplingParams
from jaxllm.structured import StructuredOutputsParams

VOCAB = 259
MAX_LEN = 48


def rarely(strategy, otherwise=None):
    """Mostly the default."""
    return st.sampled_from([0, 1, 2]).flatmap(lambda pick: strategy if pick == 0 else st.just(otherwise))


ids = st.integers(0, VOCAB - 1)
words = st.text("ab \n<|é🙂", min_size=1, max_size=3)
FIELDS = {
    "n": rarely(st.integers(1, 5), 1),
    "temperature": st.sampled_from([0, 1e-320, 1e-6, 0.5, 1, 3.0, 1e30]),
    "top_p": rarely(st.sampled_from([1e-9, 0.1, 0.9, 0.999999]), 1.0),
    "top_k": rarely(st.sampled_from([-1, 1, 2, 50, 10**9]), 0),
    "min_p": rarely(st.sampled_from([1e-9, 0.2, 1.0]), 0.0),
    "presence_penalty": rarely(st.floats(-2, 2), 0.0),
    "frequency_penalty": rarely(st.floats(-2, 2), 0.0),
    "repetition_penalty": rarely(st.sampled_from([1e-300, 0.5, 2.0, 1e300]), 1.0),
    "seed": rarely(st.integers(0, 2**63 - 1)),
    "stop": rarely(st.lists(words, max_size=3)),
    "stop_token_ids": rarely(st.lists(ids, max_size=3)),
    "bad_words": rarely(st.lists(words, max_size=3)),
    "include_stop_str_in_output": st.booleans(),
    "ignore_eos": st.booleans(),
    "max_tokens": st.sampled_from([None, 1, 2, 7, 10**9]),
    "min_tokens": rarely(st.sampled_from([1, 5]), 0),
    "logprobs": rarely(st.sampled_from([-1, 0, 1, 20, 21, 200])),
    "prompt_logprobs": rarely(st.sampled_from([-1, 0, 3, 30])),
    "logprob_token_ids": rarely(st.lists(ids, min_size=1, max_size=4)),
    "logprobs_mode": rarely(st.just("processed_logprobs")),
    "skip_special_tokens": st.booleans(),
    "spaces_between_special_tokens": st.booleans(),
    "logit_bias": rarely(st.dictionaries(ids, st.sampled_from([-1e308, -5.0, 5.0, 1e308]), max_size=3)),
    "allowed_token_ids": rarely(st.lists(ids, min_size=1, max_size=5)),
    "banned_token_ids": rarely(st.lists(ids, max_size=5)),
    "structured_outputs": rarely(st.sampled_from([
        StructuredOutputsParams(regex="a{2,4}"), StructuredOutputsParams(choice=["x", "yz"]),
        StructuredOutputsParams(json_object=True)])),
    "truncate_prompt_tokens": rarely(st.sampled_from([-1, 1, 5, 10**9])),
    "priority": st.integers(-3, 3),
    "cache_salt": rarely(st.text(max_size=3)),
}
GARBAGE = st.one_of(
    st.none(), st.booleans(), st.integers(-10**20, 10**20), st.floats(), st.text(max_size=4), st.binary(max_size=3),
    st.lists(st.one_of(st.integers(-5, 10**12), st.text(max_size=2), st.none()), max_size=3),
    st.dictionaries(st.one_of(st.text(max_size=2), st.integers(-5, 10**12)), st.floats(), max_size=2),
    st.builds(object), st.just(SamplingParams), st.just({1, 2}), st.complex_numbers(),
)
PROMPTS = st.one_of(
    st.text(max_size=60),
    st.lists(ids, max_size=60),
    st.fixed_dictionaries({"prompt": st.text(max_size=9)}),
    st.fixed_dictionaries({"prompt_token_ids": st.lists(st.integers(-2, VOCAB + 5), max_size=9)}),
)


@functools.cache
def llm(folder):
    return LLM(folder, dtype="float32", max_model_len=MAX_LEN, max_num_seqs=4, max_num_batched_tokens=32, block_size=8,
               kv_cache_bytes=64 << 10, max_logprobs=-1, swap_space="16K", scheduling_policy="priority")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_folder(tmp_path_factory.mktemp("fuzz") / "model")


@st.composite
def params(draw):
    options = {name: draw(strategy) for name, strategy in FIELDS.items()}
    try:
        return SamplingParams(**options)
    except ParameterError:
        # Two options that exclude each other: without those that do.
        for name in ("structured_outputs", "min_tokens"):
            options[name] = 0 if name == "min_tokens" else None
        return SamplingParams(**options)


def check_sample(sample, params, room):
    assert sample.finish_reason in ("stop", "length")
    assert 1 <= len(sample.token_ids) <= min(params.max_tokens or room, room)
    assert all(0 <= token < VOCAB for token in sample.token_ids)
    assert (sample.logprobs is None) == (not params.wants_logprobs)
    if sample.logprobs is not None:
        assert len(sample.logprobs) == len(sample.token_ids)
        for token, line in zip(sample.token_ids, sample.logprobs, strict=True):
            assert next(iter(line)) == token
            assert not math.isnan(line[token].logprob)
            assert line[token].logprob <= 0
        assert sample.cumulative_logprob == pytest.approx(
            sum(line[token].logprob for token, line in zip(sample.token_ids, sample.logprobs, strict=True)))
    for word in params.stop_strings:
        assert params.include_stop_str_in_output or word not in sample.text or params.min_tokens
    if params.allowed_token_ids is not None:
        assert set(sample.token_ids) <= set(params.allowed_token_ids)
    assert not set(sample.token_ids) & set(params.banned_token_ids or ())
    if params.structured_outputs is not None and sample.finish_reason == "stop" and sample.stop_reason is None:
        assert params.structured_outputs.regex is None or set(sample.text) == {"a"}


def check(request_params, output, engine):
    if output.error is not None:
        assert output.error.type in ("ParameterError", "EngineError")
        assert output.error.message
        # The engine itself fails a row only where the options leave no token to choose.
        assert output.error.type == "ParameterError" or "no token could be chosen" in output.error.message
        return
    room = engine.config.max_model_len - len(output.prompt_token_ids)
    assert [sample.index for sample in output.outputs] == list(range(request_params.n))
    for sample in output.outputs:
        check_sample(sample, request_params, room)
    if request_params.prompt_logprobs is not None:
        assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
        assert output.prompt_logprobs[0] is None


def refusal(action):
    """The ``ParameterError`` that an action raises; ``None`` if it raises nothing. Other errors fail the test."""
    try:
        action()
    except ParameterError as error:
        return error
    return None


def fuzz(examples, **options):
    return settings(max_examples=examples, suppress_health_check=list(HealthCheck), **options)


def _mixes(folder, batch):
    engine = llm(folder).engine
    prompts, wanted = [prompt for prompt, _ in batch], [one for _, one in batch]
    # One list of ids alone would be taken for one prompt, a list of such for several.
    outputs = llm(folder).generate([p if isinstance(p, dict | str) else {"prompt_token_ids": p} for p in prompts],
                                   wanted, use_tqdm=False)
    assert len(outputs) == len(batch)
    for output, one in zip(outputs, wanted, strict=True):
        check(one, output, engine)
    check_idle(engine)


@fuzz(25)
@given(batch=st.lists(st.tuples(PROMPTS, params()), min_size=1, max_size=6))
def test_any_sound_parameters_end_in_an_output_or_a_named_error(folder, batch):
    _mixes(folder, batch)


@pytest.mark.sweep
@fuzz(400)
@given(batch=st.lists(st.tuples(PROMPTS, params()), min_size=1, max_size=8))
def test_many_sound_parameters_end_in_an_output_or_a_named_error(folder, batch):
    _mixes(folder, batch)


@fuzz(60)
@given(batch=st.lists(st.tuples(st.lists(ids, min_size=1, max_size=20), params()), min_size=1, max_size=5),
       cuts=st.lists(st.integers(0, 8), max_size=6))
def test_aborting_at_any_moment_leaves_nothing_behind(folder, batch, cuts):
    engine = llm(folder).engine
    added = []
    for prompt, one in batch:
        try:
            added.append(engine.add_request(prompt, one))
        except ParameterError:
            continue
    for cut in cuts:
        engine.step()
        engine.check_integrity()
        if added and cut < len(added):
            engine.abort(added[cut])
    for request_id in added:
        engine.abort(request_id)
    check_idle(engine)


@fuzz(600)
@given(name=st.sampled_from([*FIELDS, "detokenize", "logits_processors"]), value=GARBAGE)
def test_garbage_in_any_field_is_taken_or_refused_by_name(name, value):
    error = refusal(lambda: SamplingParams(**{name: value}))
    assert error is None or error.parameter.split("[")[0] in (name, "detokenize")


@fuzz(150)
@given(prompts=st.one_of(GARBAGE, st.lists(GARBAGE, max_size=3)))
def test_garbage_for_prompts_is_refused_or_its_own_error(folder, prompts):
    outputs = []
    error = refusal(lambda: outputs.extend(
        llm(folder).generate(prompts, SamplingParams(max_tokens=2), use_tqdm=False)))
    assert error is None or error.parameter.startswith("prompt")
    assert all(output.finished for output in outputs)
    check_idle(llm(folder).engine)
