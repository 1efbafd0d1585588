"""Replicas on virtual devices give, to the bit, what one device gives, whichever of them serves a request."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from mixes import mixed_requests
from parallel.engines import POOL, SIZES, all_at_once, engine_over, model_and_params
from scripted_model import START, llm_on, script
from support import bits, greedy, prompts, run

from jaxllm import LLM, SamplingParams
from jaxllm.beam_search import BeamSearchParams
from jaxllm.errors import EngineError, ParameterError
from jaxllm.models.model import build_model
from jaxllm.program_cache import relocation
from jaxllm.program_cache.entries import Entries
from jaxllm.program_cache.executables import ExecutableCache


@pytest.mark.parametrize("data", [2, pytest.param(4, marks=pytest.mark.sweep)])
def test_outputs_are_to_the_bit_those_of_one_device(data):
    requests = mixed_requests(14, 3)
    expected = [bits(output) for output in run(engine_over(), requests)]
    engine = engine_over(data)
    assert [bits(output) for output in all_at_once(engine, requests)] == expected
    assert all(stats.num_generated_tokens for stats in engine.replica_stats())


def test_every_replica_gives_the_same_bits():
    prompt = prompts(1, 4, low=30, high=31)[0]
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=8, logprobs=3, prompt_logprobs=2)
    engine = engine_over(2)
    outputs = all_at_once(engine, [(prompt, params)] * 8)
    assert all(stats.num_generated_tokens for stats in engine.replica_stats())
    assert len({str(bits(output)) for output in outputs}) == 1


def test_everything_of_a_replica_is_on_its_device_and_nowhere_else():
    engine = engine_over(2)
    all_at_once(engine, [(prompt, greedy(3)) for prompt in prompts(6)])
    for number, replica in enumerate(engine.replicas):
        runner = replica.runner
        state = runner.weights.outer, runner.weights.layers, runner.cache, runner.table, runner.newest
        devices = {device for leaf in jax.tree.leaves(state) for device in leaf.devices()}
        assert devices == {jax.devices()[number]}
        assert sum(leaf.nbytes for leaf in jax.tree.leaves((runner.weights.outer, runner.weights.layers))) == (
            runner.model.weight_bytes)


def test_an_uneven_tail_ends_with_the_other_devices_idle():
    engine = engine_over(2)
    before = [stats.num_steps for stats in engine.replica_stats()]
    outputs = all_at_once(engine, [([9] * 20, greedy(60)), *((prompt, greedy(1)) for prompt in prompts(7, 6))])
    assert len(outputs[0].outputs[0].token_ids) == 60
    steps = sorted(stats.num_steps - number for stats, number in zip(engine.replica_stats(), before, strict=True))
    assert sum(steps[:-1]) < 30 <= steps[-1]


@pytest.mark.sweep
def test_lost_device_state_costs_one_replica_its_requests():
    engine = engine_over(2)
    names = [engine.add_request(prompt, greedy(6)) for prompt in prompts(6, 9)]
    engine.step()
    lost = {request.request_id for request in engine.replicas[0].scheduler.requests}
    engine.replicas[0].runner.newest.delete()
    done = {}
    while engine.has_unfinished():
        done.update({output.request_id: output for output in engine.step()})
    assert {name for name in names if done[name].error is not None} == lost
    assert 0 < len(lost) < 6
    assert all(output.error is None for output in all_at_once(engine, [(prompt, greedy(2)) for prompt in prompts(4)]))


@pytest.mark.sweep
def test_new_parameters_and_sleep_reach_every_replica():
    model, params = model_and_params()
    others = build_model(model.config, model.dtype).init(1, scale=0.2)
    requests = [(prompt, greedy(5, logprobs=1)) for prompt in prompts(6, 8)]
    engine = engine_over(2)
    first = [bits(output) for output in all_at_once(engine, requests)]
    engine.sleep(1)
    assert all(not replica.runner.cache for replica in engine.replicas)
    with pytest.raises(EngineError):
        engine.add_request([1], greedy(1))
    engine.wake_up()
    assert [bits(output) for output in all_at_once(engine, requests)] == first
    engine.update_params(others)
    second = [bits(output) for output in all_at_once(engine, requests)]
    assert second != first
    engine.sleep(2)
    engine.wake_up()
    engine.update_params(params)
    assert [bits(output) for output in all_at_once(engine, requests)] == first
    with pytest.raises(ParameterError):
        engine.update_params({"embedding": {"weight": np.zeros((2, 2), np.float32)}})
    assert [bits(output) for output in all_at_once(engine, requests)] == first


@pytest.mark.sweep
def test_memory_of_the_host_is_shared_among_the_replicas():
    sizes = {"kv_cache_bytes": None, "max_num_seqs": 512, "max_model_len": 512}
    one, four = (engine_over(data, **sizes) for data in (1, 4))
    assert four.config.num_blocks <= one.config.num_blocks
    with pytest.raises(ValueError, match="kv_cache_bytes"):
        engine_over(8, kv_cache_bytes=1 << 60)
    swapped = [engine_over(data, swap_bytes=1 << 20).config.num_swap_blocks for data in (1, 4)]
    assert swapped[1] == swapped[0] // 4 > 0


@pytest.mark.sweep
def test_an_llm_of_two_replicas_does_all_that_one_does(tmp_path):
    llms = [llm_on(tmp_path / str(data), script(9), data_parallel_size=data, seed=1) for data in (1, 2)]
    assert [llm.engine.config.data_parallel_size for llm in llms] == [1, 2]
    asked = [[START, number] for number in range(1, 9)]
    for each in (
        lambda llm: [bits(output) for output in llm.generate(asked, SamplingParams(max_tokens=4, logprobs=2))],
        lambda llm: [output.outputs[0].token_ids for output in llm.beam_search(
            asked[:3], BeamSearchParams(beam_width=2, max_tokens=3))],
        lambda llm: [score.logprob for score in llm.score([[START]] * 3, [[1, 2], [2, 2], [1, 3]])],
        lambda llm: sorted(output.outputs[0].token_ids for output in llm.stream(
            asked[:4], SamplingParams(temperature=0, max_tokens=3)) if output.finished),
    ):
        assert each(llms[0]) == each(llms[1])
    assert llms[1].stats().num_generated_tokens > 0
    bad = llms[1].generate([[START], [10**6], [START, 1]], SamplingParams(temperature=0, max_tokens=2))
    assert [output.error is not None for output in bad] == [False, True, False]


@pytest.mark.sweep
def test_an_llm_on_live_parameters_has_replicas_too():
    model, params = model_and_params()
    llms = [LLM.from_params(model.config, params, data_parallel_size=data, kv_cache_bytes=POOL, **SIZES)
            for data in (1, 2)]
    requests = prompts(5, 7)
    first, second = ([bits(output) for output in llm.generate(requests, greedy(4))] for llm in llms)
    assert first == second
    kept = [array for array in jax.tree.leaves(params) if array is llms[1].engine.params["embedding"]["weight"]]
    assert len(kept) == 1  # the first replica has the caller's own


@pytest.mark.sweep
def test_a_warmed_up_engine_compiles_nothing_more():
    engine = engine_over(2)
    engine.compile_all()
    counts = [replica.runner.programs.num_executables for replica in engine.replicas]
    assert counts == [len(replica.runner.programs.all_keys()) for replica in engine.replicas]
    all_at_once(engine, mixed_requests(12, 8))
    assert [replica.runner.programs.num_executables for replica in engine.replicas] == counts


@pytest.mark.parametrize(("size", "allowed"), [(9, "8"), (0, ">= 1"), (True, "integer"), ("2", "integer")])
def test_sizes_that_cannot_be_are_refused(tmp_path, size, allowed):
    with pytest.raises(ParameterError, match="data_parallel_size") as caught:
        llm_on(tmp_path / "model", script(9), data_parallel_size=size)
    assert allowed in str(caught.value)


@pytest.fixture
def _no_cache_of_jax():
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("_no_cache_of_jax")
@pytest.mark.parametrize(("size", "moves"), [(1, True), (2, True), (2, False)])
def test_a_program_is_compiled_once_for_all_devices_that_it_can_be_moved_to(size, moves, tmp_path, monkeypatch):
    if not moves:
        monkeypatch.setattr(relocation._Unpickler, "load", lambda self: 1 / 0)
    entries = Entries(tmp_path / "programs", 1 << 30)
    for start, (compiled, loaded) in {0: (1, 0), 4: (0, 1) if moves else (1, 0), 2: (0, 1) if moves else (1, 0),
                                      5: (0, 1) if moves else (1, 0)}.items():
        devices = jax.devices()[start:start + size]
        mesh = jax.sharding.Mesh(np.array(devices), ("tensor",))
        where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        sums = jax.shard_map(lambda x: jax.lax.psum(x @ x, "tensor"), mesh=mesh, in_specs=where.spec,
                             out_specs=where.spec, check_vma=False)
        like = jax.ShapeDtypeStruct((3, 3), np.float32, sharding=where)
        for expected in ((compiled, loaded), (0, 1)):  # and again, as in another process
            cache = ExecutableCache(entries)
            found = cache.get("sums", lambda sums=sums, like=like: jax.jit(sums).lower(like), None, devices)
            result = found(jax.device_put(2 * np.eye(3, dtype=np.float32), where))
            assert (cache.num_compiled, cache.num_loaded) == expected
            assert result.devices() == set(devices)
            np.testing.assert_array_equal(result, 4 * size * np.eye(3))
