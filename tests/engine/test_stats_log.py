"""A line of figures every so often, at moments that a clock of our own dictates."""

from __future__ import annotations

import logging

import pytest
from scripted import scripted_engine

from jaxllm.engine import stats_log
from jaxllm.engine.stats_log import StatsLog
from jaxllm.sampling_params import SamplingParams


class Clock:
    """Goes on by ``tick`` whenever it is read."""

    def __init__(self, tick):
        self.now, self.tick = 100.0, tick

    def __call__(self):
        self.now += self.tick
        return self.now


@pytest.fixture(autouse=True)
def _logger_as_before():
    handlers, level = list(stats_log.logger.handlers), stats_log.logger.level
    yield
    stats_log.logger.handlers[:] = handlers
    stats_log.logger.setLevel(level)


def lines_of(caplog, interval, steps, tick=1.0):
    engine = scripted_engine([9] * steps, max_num_seqs=4)
    engine._stats_log = StatsLog(interval, Clock(tick))
    engine.add_request([1, 2, 3], SamplingParams(max_tokens=steps, ignore_eos=True))
    while engine.has_unfinished():
        engine.step()
    return [record.getMessage() for record in caplog.records]


def test_a_line_comes_when_due_and_when_the_work_is_done(caplog):
    # The clock ticks at the first begin_step and at each end_step: the 1st line is due at step 5, the 2nd at step 10.
    lines = lines_of(caplog, interval=5.0, steps=12)
    assert len(lines) == 3
    assert lines[0].startswith("0.6 prompt tokens/s, 1.0 generated tokens/s; 1 running, 0 waiting; KV cache ")
    assert lines[1].startswith("0.0 prompt tokens/s, 1.0 generated tokens/s; 1 running")
    assert lines[2].startswith("0.0 prompt tokens/s, 1.0 generated tokens/s; 0 running, 0 waiting; KV cache 0.0% used")


def test_time_without_work_does_not_count(caplog):
    engine = scripted_engine(lambda sequence: 9)
    clock = Clock(1.0)
    engine._stats_log = StatsLog(10.0, clock)
    for _ in range(2):
        engine.add_request([1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True))
        while engine.has_unfinished():
            engine.step()
        clock.now += 1000.0
    assert [record.getMessage()[:30] for record in caplog.records] == ["1.5 prompt tokens/s, 1.0 gener"] * 2


def test_a_clock_that_stands_still_does_no_harm(caplog):
    assert len(lines_of(caplog, interval=5.0, steps=3, tick=0.0)) == 1


def test_lines_are_seen_where_logging_is_not_configured(monkeypatch, capsys):
    logger = logging.Logger("apart")
    monkeypatch.setattr(stats_log, "logger", logger)
    StatsLog()
    assert logger.isEnabledFor(logging.INFO)
    assert len(logger.handlers) == 1
    StatsLog()
    assert len(logger.handlers) == 1
