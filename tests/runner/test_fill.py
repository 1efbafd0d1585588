"""Steps from which nothing is read write to the cache alone, and leave out what only hidden rows need."""

from __future__ import annotations

import jax
import pytest
from support import bits, greedy, prompts, run, tiny_engine

from jaxllm.runner.keys import Key


@pytest.mark.parametrize("changes", [{}, {"num_layers": 13}, {"sliding_window": 16, "full_layers": (1,)}], ids=str)
def test_a_long_prompt_is_filled_to_the_bit(changes):
    [prompt] = prompts(1, low=90, high=100)
    requests = [(prompt, greedy(8, logprobs=2))]
    whole = run(tiny_engine(changes=changes, max_num_batched_tokens=128), requests)
    pieces = tiny_engine(changes=changes, max_num_batched_tokens=32)
    assert [bits(each) for each in run(pieces, requests)] == [bits(each) for each in whole]
    assert pieces._runner.programs.traces["fill"] == 1


def test_rows_that_are_read_are_computed():
    [prompt] = prompts(1, low=90, high=100)
    requests = [(prompt, greedy(2, prompt_logprobs=1))]
    whole = run(tiny_engine(max_num_batched_tokens=128), requests)
    pieces = tiny_engine(max_num_batched_tokens=32)
    assert [bits(each) for each in run(pieces, requests)] == [bits(each) for each in whole]
    assert pieces._runner.programs.traces["fill"] == 0


def test_a_fill_lacks_the_last_layers_attention_and_mlp():
    programs = tiny_engine(max_num_batched_tokens=32)._runner.programs
    [fill] = programs.fill_keys()
    products = [jax.stages.Compiled.cost_analysis(programs.compile(key))["flops"]
                for key in (fill, Key("layers", fill.bucket, fill.kind))]
    model = programs.model.config
    size, heads = model.head_dim, model.num_heads
    spared = model.hidden_size * (heads * size + 3 * model.intermediate_size)  # of two layers
    assert products[1] - products[0] > 2 * fill.bucket * spared


def test_long_runs_of_layers_are_not_compiled_twice(monkeypatch):
    monkeypatch.setattr("jaxllm.engine.build.CPU_LAYERS_PER_PROGRAM", 1000)
    assert tiny_engine(changes={"num_layers": 11})._runner.programs.fill_keys() == []
    assert len(tiny_engine(changes={"num_layers": 10})._runner.programs.fill_keys()) == 1
