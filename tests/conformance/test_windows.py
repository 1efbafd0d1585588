"""Models with windows: block tables of their own for window layers change no bit of any output."""

from __future__ import annotations

import functools

import pytest
from support import TINY, bits, check_idle, greedy, pool_bytes_of, prompts, run, tiny_engine

from jaxllm.beam_search import BeamSearchParams
from jaxllm.kv_cache.spec import kv_groups
from jaxllm.sampling_params import SamplingParams

HYBRID = {"num_layers": 3, "sliding_window": 20, "full_layers": (2,)}
WINDOW = {"num_layers": 2, "sliding_window": 13}
MODELS = [pytest.param(HYBRID, id="hybrid"), pytest.param(WINDOW, id="window", marks=pytest.mark.sweep)]
PROMPT = prompts(1, seed=5, low=90, high=91)[0]


def _engine(changes, blocks=None, swap_blocks=0, dtype="float32", **sizes):
    """An engine with so many blocks, or with plenty."""
    layers = 1 if changes == HYBRID else 2
    size = functools.partial(pool_bytes_of, block_size=8, layers=layers, kv_heads=TINY["num_kv_heads"],
                             head_dim=TINY["head_dim"], dtype=dtype)
    return tiny_engine(dtype, changes=changes, kv_cache_bytes=size(blocks or 400), max_num_batched_tokens=32,
                       swap_bytes=size(swap_blocks - 1) if swap_blocks else 0, **sizes)


def _requests():
    penalties = {"repetition_penalty": 1.3, "presence_penalty": 0.4}
    kinds = [
        {"temperature": 0.0, "logprobs": 3},
        {"temperature": 1.0, "seed": 11, "logprobs": 0, **penalties},
        {"temperature": 0.8, "seed": 12, "n": 3, "top_k": 20},
        {"temperature": 0.0, "prompt_logprobs": 2, "logprobs": 1},
    ]
    found = [(prompt, SamplingParams(max_tokens=50, ignore_eos=True, **options))
             for prompt, options in zip(prompts(len(kinds), 3, low=40, high=70), kinds, strict=True)]
    return [*found, (prompts(1, 9, low=30, high=31)[0], BeamSearchParams(beam_width=3, max_tokens=30, ignore_eos=True))]


@functools.cache
def _alone():
    """Each request by itself, in a pool that never runs out, without a prefix cache."""
    engine = _engine(HYBRID, enable_prefix_caching=False, speculative_config=None)
    return [bits(run(engine, [request])[0]) for request in _requests()]


@pytest.mark.parametrize("swap_blocks", [pytest.param(0, marks=pytest.mark.sweep), 90])
def test_preempted_swapped_forked_and_guessed_outputs_are_those_of_requests_run_alone(swap_blocks):
    engine = _engine(HYBRID, blocks=40, swap_blocks=swap_blocks)
    outputs = run(engine, _requests())
    check_idle(engine)
    for number, (output, expected) in enumerate(zip(outputs, _alone(), strict=True)):
        assert bits(output) == expected, f"request {number}"
    stats = engine.stats()
    assert stats.num_preemptions > 0
    assert (stats.num_swapped_in > 0) == (swap_blocks > 0)


@pytest.mark.parametrize("changes", MODELS)
@pytest.mark.parametrize(("dtype", "kept"), [
    ("float32", "auto"), *(pytest.param("bfloat16", kept, marks=pytest.mark.sweep) for kept in ("auto", "int8"))])
def test_prefix_hits_across_groups_change_no_bit(changes, dtype, kept):
    """A first request runs far past its window; others share its beginning, up to lengths of every kind."""
    followers = [(PROMPT[:length] + prompts(1, length, low=7, high=8)[0], greedy(6, logprobs=2))
                 for length in (5, 8, 16, 33, 41, 64, 90)]
    plain = _engine(changes, dtype=dtype, kv_cache_dtype=kept, enable_prefix_caching=False)
    expected = [bits(run(plain, [request])[0]) for request in followers]
    engine = _engine(changes, dtype=dtype, kv_cache_dtype=kept)
    run(engine, [(PROMPT, greedy(20))])
    outputs = [run(engine, [request])[0] for request in followers]
    assert [bits(output) for output in outputs] == expected
    assert [output.num_cached_tokens for output in outputs] == [0, 8, 16, 32, 40, 64, 88]


def test_evicted_window_blocks_shorten_hits_and_change_no_bit():
    engine = _engine(HYBRID, blocks=46)
    run(engine, [(PROMPT, greedy(20))])
    # Takes what is blank and the oldest of what is cached: the window blocks of PROMPT's beginning.
    run(engine, [(prompts(1, seed=6, low=30, high=31)[0], greedy(2))])
    outputs = [run(engine, [(PROMPT[:length], greedy(6, logprobs=2))])[0] for length in (90, 40)]
    plain = _engine(HYBRID, enable_prefix_caching=False)
    expected = [run(plain, [(PROMPT[:length], greedy(6, logprobs=2))])[0] for length in (90, 40)]
    assert list(map(bits, outputs)) == list(map(bits, expected))
    assert outputs[0].num_cached_tokens == 88
    assert outputs[1].num_cached_tokens < 32


def test_guesses_that_are_rejected_leave_nothing_in_a_window():
    """A text that repeats itself is guessed, rightly and wrongly, across the window's and the blocks' edges."""
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=100, ignore_eos=True, logprobs=2,
                            logit_bias=dict.fromkeys(range(30, 199), -100) | {9: 6.0})
    plain = _engine(HYBRID, speculative_config=None)
    engine = _engine(HYBRID)
    expected, found = (run(each, [([9] * 20, params)])[0] for each in (plain, engine))
    assert bits(found) == bits(expected)
    assert 0 < engine.stats().num_accepted_tokens < engine.stats().num_draft_tokens


def test_windows_of_full_length_are_none():
    assert tiny_engine(changes=HYBRID, max_model_len=20).config.windows == (None,)
    assert tiny_engine(changes=HYBRID, max_model_len=21).config.windows == (None, 20, 20)


@pytest.mark.parametrize(("windows", "sizes"), [
    ((None,) * 7, [(7, None)]),
    ((4,) * 7, [(7, 4)]),
    ((4, None) * 6, [(6, None), (6, 4)]),
    ((4, None) * 6 + (4,), [(2, None)] * 3 + [(2, 4)] * 3 + [(1, 4)]),
    ((4,) * 5 + (None,), [(1, None)] + [(1, 4)] * 5),
    (((4,) * 5 + (None,)) * 3, [(3, None)] + [(3, 4)] * 5),
    (((4,) * 5 + (None,)) * 4 + (4, 4), [(4, None)] + [(4, 4)] * 5 + [(2, 4)]),
    (((4,) * 5 + (None,)) * 5 + (4,) * 4, [(5, None)] + [(5, 4)] * 5 + [(4, 4)]),
    ((4, 6, None) * 4, [(4, None), (4, 4), (4, 6)]),
    ((None, 4, 4, 4, 4, 4, 4), [(1, None)] + [(1, 4)] * 6),
])
def test_layers_make_up_groups_of_one_size_as_far_as_they_can(windows, sizes):
    groups = kv_groups(windows, 4096)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(windows)))
    assert all(windows[layer] == group.window for group in groups for layer in group.layers)
    assert [(len(group.layers), group.window) for group in groups] == sizes
