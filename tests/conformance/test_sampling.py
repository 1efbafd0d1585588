"""Temperature, ties, seeds, penalties: the tokens that given logits lead to."""

from __future__ import annotations

import numpy as np
import pytest
from scripted_model import SIZE, START, engine_on, flat_table
from support import greedy, run

from jaxllm.sampling_params import SamplingParams

TINY_TEMPERATURES = [1e-4, 1e-6, 1e-30, 1e-320]


def _peaked(seed=0):
    """Random logits, each row with one far above the others."""
    generator = np.random.default_rng(seed)
    table = generator.normal(0, 3, (SIZE, SIZE)).astype(np.float32)
    table[np.arange(SIZE), generator.permutation(SIZE)] += 40
    return table


def _tied():
    """Logits of three values only: every row has ties at its top, none of them at the lowest ids."""
    table = np.random.default_rng(5).integers(0, 3, (SIZE, SIZE)).astype(np.float32)
    table[:, :2] = -1
    return table


def _tokens(table, *params, prompt=(START,)):
    outputs = run(engine_on(table), [(list(prompt), each) for each in params])
    assert [output.error for output in outputs] == [None] * len(params)
    return [[sample.token_ids for sample in output.outputs] for output in outputs]


@pytest.mark.case(1)
@pytest.mark.parametrize("temperature", TINY_TEMPERATURES)
@pytest.mark.parametrize("scale", [1.0, 1e4, 1e36])
def test_a_tiny_temperature_is_as_greedy_in_every_variant_of_the_sampler(temperature, scale):
    options = {"temperature": temperature, "max_tokens": 12, "ignore_eos": True, "seed": 3}
    wanted, *found = _tokens(
        _peaked() * np.float32(scale), greedy(12), SamplingParams(**options), SamplingParams(**options, top_p=0.9),
        SamplingParams(**options, top_k=5), SamplingParams(**options, min_p=0.1),
        SamplingParams(**options, presence_penalty=1e-6, logprobs=3))
    assert found == [wanted] * 5


@pytest.mark.case(1)
@pytest.mark.parametrize("temperature", [0.0, *TINY_TEMPERATURES])
def test_logprobs_stay_finite_at_a_tiny_temperature(temperature):
    (output,) = run(engine_on(_peaked()), [([START], greedy(8, temperature=temperature, logprobs=5))])
    values = [entry.logprob for line in output.outputs[0].logprobs for entry in line.values()]
    assert np.isfinite(values).all()
    assert np.isfinite(output.outputs[0].cumulative_logprob)


@pytest.mark.case(1)
def test_a_huge_temperature_draws_all_ids_alike():
    params = SamplingParams(temperature=1e30, max_tokens=48, seed=1, n=8, ignore_eos=True)
    ((*samples,),) = _tokens(_peaked(), params)
    counts = np.bincount(np.concatenate(samples), minlength=SIZE)
    # 384 draws of 64 ids: 6 each on average; below 1 or above 20 has probability 1e-5.
    assert counts.min() >= 1
    assert counts.max() <= 20


@pytest.mark.case(1)
@pytest.mark.parametrize("options", [{"top_p": 1e-6}, {"top_p": 1e-320}, {"min_p": 1.0}], ids=str)
def test_filters_so_tight_that_one_token_is_left_are_as_greedy(options):
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True, seed=3, **options)
    wanted, found = _tokens(_peaked(), greedy(12), params)
    assert found == wanted


@pytest.mark.case(2)
@pytest.mark.parametrize("options", [
    {"temperature": 1.0, "top_k": 1}, {"temperature": 5.0, "top_k": 1}, {"temperature": 1.0, "top_p": 1e-6},
    {"temperature": 1.0, "top_k": 1, "presence_penalty": 1e-30, "logprobs": 2}], ids=str)
def test_ties_go_to_the_lowest_id_in_greedy_sampling_and_wherever_one_token_is_kept(options):
    table = _tied()
    wanted, found = _tokens(table, greedy(16), SamplingParams(max_tokens=16, ignore_eos=True, seed=9, **options))
    assert found == wanted
    tokens = [START, *wanted[0]]
    assert tokens[1:] == [int(np.argmax(table[token])) for token in tokens[:-1]]


@pytest.mark.case(2)
def test_all_logits_equal_gives_the_lowest_id_that_is_allowed():
    table = flat_table()
    tokens = _tokens(table, greedy(2), greedy(2, temperature=1.0, top_k=1), greedy(2, banned_token_ids=[0, 1]),
                     greedy(2, temperature=1.0, top_k=1, allowed_token_ids=[9, 7, 8]))
    assert tokens == [[[0, 0]], [[0, 0]], [[2, 2]], [[7, 7]]]


@pytest.mark.case(2)
def test_tied_logprobs_share_a_rank_and_come_in_order_of_their_ids():
    (output,) = run(engine_on(_tied()), [([START], greedy(4, logprobs=20))])
    for line in output.outputs[0].logprobs:
        entries = list(line.items())
        assert next(iter(line.values())).rank == 1
        assert entries == sorted(entries, key=lambda entry: (-entry[1].logprob, entry[0]))
        ranks = {}
        for _, entry in entries:
            assert ranks.setdefault(entry.logprob, entry.rank) == entry.rank


@pytest.mark.case(18)
def test_n_samples_of_a_seed_differ_and_repeat():
    params = SamplingParams(n=4, seed=7, max_tokens=16, ignore_eos=True)
    table = flat_table()
    (first,), (again,) = _tokens(table, params), _tokens(table, params)
    assert len({tuple(sample) for sample in first}) == 4
    assert first == again


@pytest.mark.case(18)
def test_sample_i_depends_on_the_seed_and_i_but_not_on_n():
    params = [SamplingParams(n=n, seed=7, max_tokens=16, ignore_eos=True) for n in (1, 2, 6)]
    one, two, six = _tokens(flat_table(), *params)
    assert six[:2] == two
    assert two[:1] == one


@pytest.mark.case(18)
@pytest.mark.parametrize("seeds", [(0, 1), (7, 7 + 2**32), (1, 2**62 + 1), (2**32 - 1, 2**32)])
def test_seeds_that_differ_in_any_bit_give_different_samples(seeds):
    params = [SamplingParams(seed=seed, max_tokens=16, ignore_eos=True) for seed in seeds]
    first, second = _tokens(flat_table(), *params)
    assert first != second


@pytest.mark.case(18)
def test_neighbouring_seeds_and_samples_do_not_overlap():
    params = [SamplingParams(n=4, seed=seed, max_tokens=8, ignore_eos=True) for seed in range(4)]
    samples = [tuple(sample) for output in _tokens(flat_table(), *params) for sample in output]
    assert len(set(samples)) == 16


@pytest.mark.case(31)
def test_the_newest_token_counts_for_the_frequency_penalty():
    table = flat_table()
    table[:, [3, 4, 5]] = [2.0, 1.5, 1.2]
    # By hand, always the largest of 2 - count, 1.5 - count and 1.2 - count, ties to the lowest id.
    (tokens,) = _tokens(table, greedy(9, frequency_penalty=1.0))[0]
    assert tokens == [3, 4, 5, 3, 4, 5, 0, 1, 2]


@pytest.mark.case(31)
@pytest.mark.parametrize(("options", "wanted"), [
    ({"presence_penalty": 1.0}, [3, 4, 5, 3, 3, 3]),
    # 4 / 2 = 2 > 1.5 and 1.2: the first stays ahead once penalized.
    ({"repetition_penalty": 1.5}, [3, 4, 3, 3, 3, 3]),
    ({"repetition_penalty": 2.0}, [3, 4, 5, 3, 3, 3]),
])
def test_the_newest_token_counts_for_the_other_penalties(options, wanted):
    table = flat_table() - np.float32(9)
    table[:, [3, 4, 5]] = [2.0, 1.5, 1.2]
    (tokens,) = _tokens(table, greedy(6, **options))[0]
    assert tokens == wanted


@pytest.mark.case(31)
def test_the_prompt_counts_for_the_repetition_penalty_alone():
    table = flat_table() - np.float32(9)
    table[:, [3, 4]] = [2.0, 1.5]
    repetition, presence, frequency = _tokens(
        table, greedy(1, repetition_penalty=1.5), greedy(1, presence_penalty=2.0), greedy(1, frequency_penalty=2.0),
        prompt=[3, 3])
    assert (repetition, presence, frequency) == ([[4]], [[3]], [[3]])


@pytest.mark.case(31)
def test_samples_of_a_prompt_count_their_own_tokens():
    table = flat_table()
    table[:, [3, 4, 5]] = [2.0, 1.5, 1.2]
    (samples,) = _tokens(table, greedy(6, frequency_penalty=1.0, n=3))
    assert samples == [[3, 4, 5, 3, 4, 5]] * 3
