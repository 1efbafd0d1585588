"""The progress bar counts samples and survives a clock that stands still."""

from __future__ import annotations

import io

import pytest
from scripted import scripted_engine
from support import greedy

from jaxllm import progress
from jaxllm.progress import ProgressBar


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def screen(monkeypatch):
    terminal = _Terminal()
    real = progress.tqdm
    monkeypatch.setattr(progress, "tqdm", lambda **options: real(**{**options, "file": terminal, "mininterval": 0}))
    return terminal


def _run(bar):
    engine = scripted_engine(lambda sequence: 0)
    engine.add_request([1], greedy(2, n=3))
    engine.add_request([2], greedy(3))
    while engine.has_unfinished():
        for collector in engine.advance():
            bar.update(collector)


def test_the_total_counts_samples(screen):
    with ProgressBar(4, shown=True) as bar:
        _run(bar)
        assert (bar._bar.n, bar._bar.total) == (4, 4)
    assert "4/4" in screen.getvalue()
    assert "tokens/s" in screen.getvalue()


def test_no_time_passing_is_no_division_by_zero(screen, monkeypatch):
    monkeypatch.setattr(progress.time, "perf_counter", lambda: 5.0)
    bar = ProgressBar(4, shown=True)
    assert bar.rate() == 0.0
    _run(bar)


def test_it_is_silent_when_not_shown(screen):
    with ProgressBar(4, shown=False) as bar:
        _run(bar)
    assert screen.getvalue() == ""


@pytest.mark.parametrize("closed", [True, False], ids=["closed", "none"])
def test_a_program_without_standard_error_runs_without_a_bar(monkeypatch, closed):
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr("sys.stderr", stream if closed else None)
    with ProgressBar(4, shown=True) as bar:
        _run(bar)
