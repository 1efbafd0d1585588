from __future__ import annotations

import jax.numpy as jnp
import pytest

from jaxllm.bench import machine


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_both_speeds_are_those_of_work_that_was_done(dtype, monkeypatch):
    """With a clock on which every call takes a second: the bytes and operations of one call."""
    def one_second(function):
        function().block_until_ready()
        return 1.0

    monkeypatch.setattr(machine, "_shortest", one_second)
    monkeypatch.setattr(machine, "BUFFER_BYTES", 4 << 20)
    monkeypatch.setattr(machine, "MATRIX", 64)
    speed = machine.measure_machine(jnp.dtype(dtype))
    assert speed.bytes_per_second == 4 << 20
    assert speed.flops_per_second == 2 * 64**3


def test_the_shortest_of_several_calls_counts_and_the_first_does_not(monkeypatch):
    ticks = iter([0.0, 0.0, 0.3, 0.3, 0.4, 0.4, 0.8])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(ticks))
    calls = []
    assert machine._shortest(lambda: calls.append(None) or jnp.zeros(1), 0.5) == pytest.approx(0.1)
    assert len(calls) == 4
