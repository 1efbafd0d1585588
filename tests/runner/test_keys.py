"""How layers are cut into programs: few kinds of runs, which are compiled once each, and few runs."""

from __future__ import annotations

import pytest
from support import tiny_model

from jaxllm.engine.sizes import cache_spec
from jaxllm.runner.keys import layer_chunks


def _runs(layers_per_program, **changes):
    model, _ = tiny_model(**changes)
    spec = cache_spec(model, "auto")
    return [(chunk.kind, chunk.layers.stop - chunk.layers.start)
            for chunk in layer_chunks(model, spec, layers_per_program)]


@pytest.mark.parametrize(("layers", "runs"), [(30, [10, 10, 10]), (12, [6, 6]), (7, [7]), (11, [1] * 11)])
def test_equal_layers_are_cut_evenly(layers, runs):
    assert _runs(10, num_layers=layers) == [(0, size) for size in runs]


@pytest.mark.parametrize(("layers", "runs"), [
    (18, [(0, 6)] * 3), (26, [(0, 6)] * 4 + [(1, 2)]), (34, [(0, 6)] * 5 + [(1, 4)])])
def test_a_pattern_of_layers_is_cut_where_it_repeats(layers, runs):
    full = tuple(range(5, layers, 6))
    assert _runs(10, num_layers=layers, sliding_window=16, full_layers=full) == runs


def test_all_layers_are_one_run_where_programs_may_be_long():
    assert _runs(1000, num_layers=8, sliding_window=16, full_layers=(3, 7)) == [(0, 8)]
