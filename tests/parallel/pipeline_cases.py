"""Pipelines on virtual devices: the same outputs as on one device, from stages that have their own layers alone."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from mixes import mixed_requests
from scripted_model import START, llm_on, script
from support import bits, by_policy, check_idle, greedy, pool_bytes_of, prompts, run, tiny_model

from jaxllm import SamplingParams
from jaxllm.engine.build import EngineSizes, build_engine
from jaxllm.errors import ParameterError
from jaxllm.models.model import build_model
from jaxllm.parallel.mesh import device_mesh
from jaxllm.parallel.pipeline import replica_partitions

LAYERS = 5
CHANGES = {"num_layers": LAYERS}
SIZES = {"max_model_len": 128, "max_num_seqs": 8, "max_num_batched_tokens": 64, "block_size": 8,
         "speculative_config": None, "seed": 5}


def _pool(blocks, layers):
    return pool_bytes_of(blocks, 8, layers=layers, kv_heads=2, head_dim=8, dtype="float32")


@functools.cache  # compiling for several devices is what takes time
def _engine(pipe, data=1, tensor=1, blocks=40, **sizes):
    """With as many blocks, whatever the number of stages."""
    model, params = tiny_model(**CHANGES)
    (partition, *_) = partitions = replica_partitions(model, device_mesh(data=data, pipe=pipe, tensor=tensor))
    layers = LAYERS if pipe == 1 else max(map(len, partition.layers))
    sizes = {"kv_cache_bytes": _pool(blocks, layers) // tensor, **SIZES, **sizes}
    return build_engine(model, lambda: params, EngineSizes(**sizes), partition=partitions, eos_token_ids=[7])


def _all_at_once(engine, requests):
    names = [engine.add_request(prompt, by_policy(engine, params)) for prompt, params in requests]
    done = {}
    while engine.has_unfinished():
        done.update({output.request_id: output for output in engine.step() if output.finished})
    check_idle(engine)
    return [done[name] for name in names]


@pytest.mark.parametrize("pipe", [2, pytest.param(4, marks=pytest.mark.sweep)])
def test_outputs_are_to_the_bit_those_of_one_device(pipe):
    requests = mixed_requests(16, 3)
    expected = [bits(output) for output in run(_engine(1), requests)]
    engine = _engine(pipe)
    assert [bits(output) for output in _all_at_once(engine, requests)] == expected
    assert engine.stats().num_preemptions > 0


@pytest.mark.sweep
@pytest.mark.parametrize(("data", "pipe", "tensor"), [(2, 2, 1), (2, 2, 2), (1, 2, 2), (1, 4, 2)])
def test_all_axes_together_sample_what_one_device_does(data, pipe, tensor):
    requests = [(prompt, SamplingParams(temperature=number % 2, seed=number, max_tokens=6, logprobs=2))
                for number, prompt in enumerate(prompts(8, 2))]
    expected = run(_engine(1), requests)
    found = _all_at_once(_engine(pipe, data=data, tensor=tensor), requests)
    for output, like in zip(found, expected, strict=True):
        (sample,), (as_one) = output.outputs, like.outputs[0]
        assert sample.token_ids == as_one.token_ids
        for here, there in zip(sample.logprobs, as_one.logprobs, strict=True):
            assert all(abs(here[token].logprob - there[token].logprob) < 1e-4 for token in sample.token_ids
                       if token in here and token in there)


@pytest.mark.parametrize("pipe", [2, pytest.param(4, marks=pytest.mark.sweep)])
def test_each_device_has_its_layers_weights_and_cache_alone(pipe):
    engine, whole = _engine(pipe), _engine(1)
    runner = engine.replicas[0].runner
    embedding = whole.replicas[0].runner.model.specs["embedding.weight"].nbytes
    layer = sum(leaf.nbytes for leaf in jax.tree.leaves(whole.replicas[0].runner.weights.layers[0]))
    cache = sum(leaf.nbytes for leaf in jax.tree.leaves(whole.replicas[0].runner.cache))
    assert engine.config.num_blocks == whole.config.num_blocks
    found = []
    for number, (stage, weights) in enumerate(zip(runner.stages, runner.weights.stages, strict=True)):
        placed = jax.tree.leaves((weights.outer, weights.layers))
        state = [*placed, *jax.tree.leaves((stage.cache, stage.table))]
        assert {device for leaf in state for device in leaf.devices()} == {jax.devices()[number]}
        layers = len(stage.spec.layers)
        found.append(layers)
        ends = number in (0, pipe - 1)
        assert sum(leaf.nbytes for leaf in placed) <= layers * layer + ends * 1.1 * embedding
        assert sum(leaf.nbytes for leaf in jax.tree.leaves(stage.cache)) == cache * layers // LAYERS
    assert sum(found) == LAYERS
    assert max(found) <= -(-LAYERS // pipe) + 1


def _flops(stage, keys):
    """Of one call of each program."""
    return sum(stage.programs.compile(key).cost_analysis()["flops"] for key in keys)


def test_in_steady_state_every_stage_works_and_no_work_is_done_twice(monkeypatch):
    pipe, engine, whole = 2, _engine(2), _engine(1)
    runner = engine.replicas[0].runner
    for number in range(8):
        engine.add_request([number + 8], greedy(40, seed=number))
    for _ in range(8):
        engine.step()
    plans, flights = [], []
    dispatch = runner.dispatch

    def watched(plan):
        plans.append(plan)
        flights.append(len(engine.replicas[0].loop._steps) + 1)
        return dispatch(plan)

    monkeypatch.setattr(runner, "dispatch", watched)
    for _ in range(12):
        engine.step()
    monkeypatch.undo()
    # As many steps on their way as stages, besides the one whose results the host deals with; each has its share of
    # the requests, none of which is in two that follow one another.
    assert set(flights) == {pipe + 1}
    assert {len(plan.sequences) for plan in plans} == {8 // pipe}
    for plan, after in zip(plans, plans[1:], strict=False):
        assert not set(plan.sequences) & set(after.sequences)
    per_token = max(_flops(stage, [key for key in stage.programs.forward_keys(8)]) for stage in runner.stages) / (8 // pipe)
    one = whole.replicas[0].runner
    ideal = _flops(one, one.programs.forward_keys(8)) / 8 / pipe
    # Here a step is padded to eight rows, as products are: that is what keeps bits the same.
    assert per_token * (8 // pipe) / 8 <= 1.15 * ideal * max(len(stage.spec.layers) for stage in runner.stages) / (
        LAYERS / pipe)
    while engine.has_unfinished():
        engine.step()


def test_everything_an_engine_does_goes_on_in_a_pipeline():
    model, params = tiny_model(**CHANGES)
    others = build_model(model.config, model.dtype).init(1, scale=0.2)
    requests = [(prompt, greedy(5, logprobs=1)) for prompt in prompts(6, 8)]
    engine = _engine(2)
    first = [bits(output) for output in _all_at_once(engine, requests)]
    engine.sleep(1)
    assert all(not stage.cache for stage in engine.replicas[0].runner.stages)
    engine.wake_up()
    assert [bits(output) for output in _all_at_once(engine, requests)] == first
    engine.update_params(others)
    assert [bits(output) for output in _all_at_once(engine, requests)] != first
    engine.sleep(2)
    engine.wake_up()
    engine.update_params(params)
    assert [bits(output) for output in _all_at_once(engine, requests)] == first
    found, given = jax.tree.flatten(engine.params), jax.tree.flatten(params)
    assert found[1] == given[1]
    assert all((np.asarray(here) == np.asarray(there)).all() for here, there in zip(found[0], given[0], strict=True))
    with pytest.raises(ParameterError):
        engine.update_params({"embedding": {"weight": np.zeros((2, 2), np.float32)}})
    assert [bits(output) for output in _all_at_once(engine, requests)] == first


def test_a_lone_request_runs_through_the_stages():
    requests = [(prompts(1, 3)[0], greedy(12))]
    assert bits(_all_at_once(_engine(2), requests)[0]) == bits(_all_at_once(_engine(1), requests)[0])


def test_lost_device_state_of_one_stage_is_noticed_and_made_anew():
    engine = _engine(2)
    engine.add_request([9, 10], greedy(8))
    engine.step()
    engine.replicas[0].runner.stages[0].table.blocks.delete()
    outputs = []
    while engine.has_unfinished():
        outputs += engine.step()
    assert outputs[-1].error is not None
    assert _all_at_once(engine, [([9, 10], greedy(3))])[0].error is None


def test_an_llm_of_two_stages_and_its_bounds(tmp_path):
    with pytest.raises(ParameterError, match=r"pipeline_parallel_size.*at most 1"):
        llm_on(tmp_path / "a", script(9), pipeline_parallel_size=2)
    with pytest.raises(ParameterError, match=r"pipeline_parallel_size.*8"):
        llm_on(tmp_path / "b", script(9), pipeline_parallel_size=9)
    with pytest.raises(ParameterError, match="pipeline_parallel_size"):
        llm_on(tmp_path / "c", script(9), pipeline_parallel_size=0)
    assert START == 0


@pytest.mark.sweep
@pytest.mark.parametrize("options", [{"swap_bytes": 1 << 20}, {"overlap": False}, {"kv_cache_dtype": "int8"},
                                     {"speculative_config": "auto"}])
def test_options_change_nothing_in_a_pipeline(options):
    requests = mixed_requests(16, 11)
    blocks = {} if "kv_cache_dtype" in options else {"blocks": 24}
    expected = [bits(output) for output in run(_engine(1, **options, **blocks), requests)]
    engine = _engine(3, **options, **blocks)
    assert [bits(output) for output in _all_at_once(engine, requests)] == expected
    if "swap_bytes" in options:
        assert engine.stats().num_swapped_in > 0
