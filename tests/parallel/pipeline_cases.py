"""Pipelines on virtual devices: the same outputs as on one device, from stages that have their own layers alone."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from mixes import mixed_requests
from parallel.engines import LAYERS, SIZES, all_at_once, engine_over, model_and_params
from scripted_model import llm_on, script
from support import bits, greedy, prompts, run, tiny_model
from tiny_folder import write_tiny_folder

from jaxllm import LLM, SamplingParams, StructuredOutputsParams
from jaxllm.beam_search import BeamSearchParams
from jaxllm.engine.build import EngineSizes, choose_config, programs_of
from jaxllm.errors import ParameterError
from jaxllm.models.model import build_model
from jaxllm.parallel.mesh import chosen_mesh
from jaxllm.parallel.pipeline import balanced_layers, replica_partitions
from jaxllm.runner.keys import Key
from jaxllm.sampling import Variant
from pallas_kernels.registry import implementations, operations


@pytest.mark.parametrize("pipe", [2, pytest.param(4, marks=pytest.mark.sweep)])
def test_outputs_are_to_the_bit_those_of_one_device(pipe):
    requests = mixed_requests(16, 3) + [([number + 9] * 8, greedy(40)) for number in range(6)]
    expected = [bits(output) for output in run(engine_over(), requests)]
    engine = engine_over(pipe=pipe)
    assert [bits(output) for output in all_at_once(engine, requests)] == expected
    assert engine.stats().num_preemptions > 0


@pytest.mark.sweep
@pytest.mark.parametrize("pipe", [2, 4])
def test_each_device_has_its_layers_weights_and_cache_alone(pipe):
    engine, whole = engine_over(pipe=pipe), engine_over()
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


def test_in_steady_state_every_stage_works_on_other_requests(monkeypatch):
    engine = engine_over(pipe=2)
    loop, runner = engine.replicas[0].loop, engine.replicas[0].runner
    for number in range(8):
        engine.add_request([number + 8], greedy(40))
    for _ in range(8):
        engine.step()
    plans, flights = [], []
    dispatch = runner.dispatch

    def watched(plan):
        plans.append(plan)
        flights.append(len(loop._steps) + 1)
        return dispatch(plan)

    monkeypatch.setattr(runner, "dispatch", watched)
    for _ in range(12):
        engine.step()
    monkeypatch.undo()
    # Two on their way, besides the one whose results the host deals with. Each has half of the requests, and none of
    # these is in the one after it.
    assert set(flights) == {3}
    assert {len(plan.sequences) for plan in plans} == {4}
    for plan, after in itertools.pairwise(plans):
        assert not set(plan.sequences) & set(after.sequences)
        assert len(after.fed) == 4
    while engine.has_unfinished():
        engine.step()


@pytest.mark.sweep
def test_the_work_of_each_device_is_its_share_of_one_devices(monkeypatch):
    for operation in operations():  # the work of native kernels is not known
        if "xla" in implementations(operation):
            monkeypatch.setenv(f"PALLAS_KERNELS_{operation.upper()}", "xla")
    jax.clear_caches()
    model, _ = tiny_model(num_layers=4)

    def work(pipe):
        """Of each device, floating-point operations per generated token, in steps of eight."""
        (replica,) = replica_partitions(model, chosen_mesh(pipeline_parallel_size=pipe))
        sizes = EngineSizes(**{**SIZES, "max_num_seqs": 8 * pipe, "kv_cache_bytes": 1 << 20})
        config, spec = choose_config(model, sizes, partition=replica)
        found = []
        for stage in programs_of(replica, spec, config):
            keys = [Key(stage.forward_keys(8)[0].program, 8)]
            keys += [Key("layers", 8, chunk.kind) for chunk in stage.chunks]
            keys += [Key("end", 8), Key("sample", 8, Variant.GREEDY)] if stage.last else []
            found.append(sum(stage.lower(key).compile().cost_analysis()["flops"] for key in keys) / 8)
        return found

    (alone,) = work(1)
    assert alone > 4 * 2 * 48 * (10 * 8 + 48 + 3 * 80)  # the layers' products at least
    for pipe in (2, 4):
        found = work(pipe)
        assert len(found) == pipe
        # The largest has its layers and the head besides, a seventh of the work, which cannot be cut.
        head = 2 * 48 * 199
        assert max(found) <= 1.15 * (alone - head) / pipe + head
        assert sum(found) <= 1.15 * alone
    jax.clear_caches()


@pytest.mark.sweep
def test_beams_wait_for_their_rows_in_a_pipeline():
    beams = [(prompt, BeamSearchParams(beam_width=3, max_tokens=6)) for prompt in prompts(3, 5)]
    expected, found = ([[(sample.token_ids, sample.cumulative_logprob) for sample in output.outputs]
                        for output in all_at_once(engine_over(pipe=pipe), beams)] for pipe in (1, 2))
    assert found == expected
    assert all(len(samples) > 1 for samples in found)


@pytest.mark.sweep
def test_everything_an_engine_does_goes_on_in_a_pipeline():
    model, params = model_and_params()
    others = build_model(model.config, model.dtype).init(1, scale=0.2)
    requests = [(prompt, greedy(5, logprobs=1)) for prompt in prompts(6, 8)]
    engine = engine_over(pipe=2)
    first = [bits(output) for output in all_at_once(engine, requests)]
    engine.sleep(1)
    assert all(not stage.cache for stage in engine.replicas[0].runner.stages)
    engine.wake_up()
    assert [bits(output) for output in all_at_once(engine, requests)] == first
    engine.update_params(others)
    assert [bits(output) for output in all_at_once(engine, requests)] != first
    engine.sleep(2)
    engine.wake_up()
    engine.update_params(params)
    assert [bits(output) for output in all_at_once(engine, requests)] == first
    found, given = jax.tree.flatten(engine.params), jax.tree.flatten(params)
    assert found[1] == given[1]
    assert all((np.asarray(here) == np.asarray(there)).all() for here, there in zip(found[0], given[0], strict=True))
    with pytest.raises(ParameterError):
        engine.update_params({"embedding": {"weight": np.zeros((2, 2), np.float32)}})
    assert [bits(output) for output in all_at_once(engine, requests)] == first


@pytest.mark.sweep
def test_a_lone_request_runs_through_the_stages():
    requests = [(prompts(1, 3)[0], greedy(12))]
    assert bits(all_at_once(engine_over(pipe=2), requests)[0]) == bits(all_at_once(engine_over(), requests)[0])


@pytest.mark.sweep
def test_lost_device_state_of_one_stage_is_noticed_and_made_anew():
    engine = engine_over(pipe=2)
    engine.add_request([9, 10], greedy(8))
    engine.step()
    engine.replicas[0].runner.stages[0].table.blocks.delete()
    outputs = []
    while engine.has_unfinished():
        outputs += engine.step()
    assert outputs[-1].error is not None
    assert all_at_once(engine, [([9, 10], greedy(3))])[0].error is None


@pytest.mark.parametrize(("changes", "stages", "expected"), [
    ({"num_layers": 6}, 1, [6]),
    ({"num_layers": 6}, 2, [3, 3]),
    ({"num_layers": 7}, 3, [2, 3, 2]),
    ({"num_layers": 4}, 4, [1, 1, 1, 1]),
    # A large vocabulary weighs as much as some layers, at both ends or at one.
    ({"num_layers": 8, "vocab_size": 2000}, 4, [1, 3, 3, 1]),
    ({"num_layers": 8, "vocab_size": 600}, 2, [4, 4]),
    # By weights alone it would be [1, 4, 4, 1]: four times the cache on some.
    ({"num_layers": 10, "vocab_size": 1600}, 4, [2, 3, 3, 2]),
    ({"num_layers": 12, "vocab_size": 1200}, 3, [4, 5, 3]),
])
def test_stages_have_about_equal_bytes(changes, stages, expected):
    model, _ = tiny_model(**changes)
    layers = balanced_layers(model, stages)
    assert [len(each) for each in layers] == expected
    assert [number for each in layers for number in each] == list(range(changes["num_layers"]))


def test_an_llm_of_two_stages_and_its_bounds(tmp_path):
    with pytest.raises(ParameterError, match=r"pipeline_parallel_size.*at most 1"):
        llm_on(tmp_path / "a", script(9), pipeline_parallel_size=2)
    with pytest.raises(ParameterError, match=r"pipeline_parallel_size.*8"):
        llm_on(tmp_path / "b", script(9), pipeline_parallel_size=9)
    with pytest.raises(ParameterError, match="pipeline_parallel_size"):
        llm_on(tmp_path / "c", script(9), pipeline_parallel_size=0)


@pytest.mark.sweep
@pytest.mark.parametrize("options", [{"swap_bytes": 1 << 20}, {"overlap": False}, {"kv_cache_dtype": "int8"},
                                     {"speculative_config": "auto"}])
def test_options_change_nothing_in_a_pipeline(options):
    requests = mixed_requests(16, 11) + [([number + 9] * 8, greedy(40)) for number in range(6)]
    expected = [bits(output) for output in run(engine_over(**options), requests)]
    engine = engine_over(pipe=3, **options)
    assert [bits(output) for output in all_at_once(engine, requests)] == expected
    if "swap_bytes" in options:
        assert engine.stats().num_swapped_in > 0


@pytest.mark.sweep
def test_a_folder_is_read_into_stages_obeys_grammars_there_and_is_written_again(tmp_path):
    folder = write_tiny_folder(tmp_path / "model", num_hidden_layers=3)
    sizes = {**SIZES, "dtype": "float32", "kv_cache_bytes": 1 << 20, "max_logprobs": -1}
    llms = [LLM(folder, pipeline_parallel_size=size, data_parallel_size=size, **sizes) for size in (1, 2)]
    params = [
        SamplingParams(max_tokens=8, temperature=1.0, seed=1,
                       structured_outputs=StructuredOutputsParams(regex="[ab]{3,6}")),
        SamplingParams(max_tokens=8, temperature=1.0, seed=2, bad_words=["ab", "xyz"], logprobs=2),
        SamplingParams(max_tokens=8, temperature=0.0, prompt_logprobs=1),
        SamplingParams(max_tokens=4, temperature=0.8, seed=3, logprobs=-1, presence_penalty=0.5),
    ]
    asked = ["one", "two and more", "three", "four"]
    expected, found = ([bits(output) for output in llm.generate(asked, params)] for llm in llms)
    assert found == expected
    assert [output[2] for output in found] == [None] * len(asked)
    assert set(llms[1].generate(asked[0], params[0])[0].outputs[0].text) <= {"a", "b"}
    written = []
    for number, llm in enumerate(llms):
        llm.save_pretrained(tmp_path / str(number))
        written.append((tmp_path / str(number) / "model.safetensors").read_bytes())
    assert written[0] == written[1]
    dummy = LLM(folder, load_format="dummy", pipeline_parallel_size=3, **sizes)
    assert dummy.generate([[5, 6]], greedy(2))[0].error is None
