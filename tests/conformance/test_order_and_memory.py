"""Outputs in the order of their prompts, progress that adds up, memory that is given back."""

from __future__ import annotations

import gc
import io

import jax
import pytest
from scripted_model import SIZES, START, llm_on, script
from support import greedy

from jaxllm import progress


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    return llm_on(tmp_path_factory.mktemp("model") / "m", script(20), *"abcdefghijklmnopqrst", max_num_seqs=3)


class _Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def bars(monkeypatch):
    """The bars shown, on a terminal that is a string."""
    shown, real = [], progress.tqdm

    def tqdm(**options):
        shown.append(real(**{**options, "file": _Terminal(), "mininterval": 0}))
        return shown[-1]

    monkeypatch.setattr(progress, "tqdm", tqdm)
    return shown


@pytest.mark.case(35)
def test_outputs_come_in_the_order_of_the_prompts_not_of_their_ends(llm):
    prompts = [[START] * (1 + (number * 7) % 19) for number in range(20)]
    params = [greedy(1 + (number * 5) % 17) for number in range(20)]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    assert [output.prompt_token_ids for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [each.max_tokens for each in params]
    ends = [output.metrics.finished_time for output in outputs]
    assert ends != sorted(ends)


@pytest.mark.case(35)
def test_a_stream_ends_each_request_once_and_names_it(llm):
    prompts = [[START] * (1 + number) for number in range(6)]
    params = [greedy(9 - number) for number in range(6)]
    outputs = list(llm.stream(prompts, params))
    ended = [output.prompt_token_ids for output in outputs if output.finished]
    assert sorted(ended) == prompts
    assert len({output.request_id for output in outputs}) == 6


@pytest.mark.case(29)
@pytest.mark.parametrize("n", [1, 3])
def test_the_bar_counts_samples_to_its_total(llm, bars, n):
    llm.generate([[START]] * 4, greedy(3, n=n), use_tqdm=True)
    (bar,) = bars
    assert bar.total == bar.n == 4 * n


@pytest.mark.case(29)
def test_prompts_that_are_refused_do_not_count(llm, bars):
    llm.generate([[START], [], [START]], greedy(3, n=3), use_tqdm=True)
    assert bars[0].total == bars[0].n == 6


@pytest.mark.case(29)
def test_a_clock_that_stands_still_stops_nothing(llm, bars, monkeypatch):
    monkeypatch.setattr(progress.time, "perf_counter", lambda: 5.0)
    outputs = llm.generate([[START]] * 2, greedy(3, n=2), use_tqdm=True)
    assert [output.finished for output in outputs] == [True, True]
    assert "0.0 tokens/s" in bars[0].postfix
    llm.stats()


@pytest.mark.case(29)
def test_no_prompts_at_all_is_no_division_by_zero(llm, bars):
    assert llm.generate([], greedy(3), use_tqdm=True) == []
    assert [bar.total for bar in bars] in ([], [0])


@pytest.mark.case(38)
def test_a_second_engine_finds_the_memory_of_the_first_free(tmp_path):
    def live():
        gc.collect()
        return sum(array.nbytes for array in jax.live_arrays())

    before = live()
    params = greedy(3, n=2, logprobs=2, frequency_penalty=0.1, prompt_logprobs=1)
    for number in range(3):
        llm = llm_on(tmp_path / f"m{number}", script(3), "a", "b", "c")
        llm.generate([[START]] * 2, params, use_tqdm=False)
        assert live() > before + SIZES["kv_cache_bytes"] // 2
        if number == 1:
            stream = llm.stream([[START]], greedy(9))
            next(stream)  # left in the middle
            del stream
        del llm
        # Besides constants of a few bytes that JAX keeps.
        assert live() <= before + 1024
