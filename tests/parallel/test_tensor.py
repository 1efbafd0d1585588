"""Tensor parallelism on virtual devices against one device: the same tokens, log-probabilities within 1e-4 in float32.

The devices differ from one alone by the order of sums, a few units in the last place of numbers near 10; those that
int8 computes with are rounded to 16 bits by each device's own part of a row, hence 5e-3 there. The cases run in two
processes with eight devices each (``tensor_cases.py``), as what JAX calls devices cannot change within one.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
QUICK = ("refusals", "programs")
LONG = ("llama", "llama, kv heads on two devices each", "gemma3", "gpt_oss by expert", "llama4 by expert", "olmo2",
        "alibi", "deepseek", "int8 experts", "swapping", "folder", "trainer", "kept")
SHARES = {"llama": 1 / 4, "llama, kv heads on two devices each": 1 / 8, "gemma3": 1 / 4, "gpt_oss by expert": 1 / 4,
          "llama4 by expert": 1 / 2, "olmo2": 1 / 4, "alibi": 1 / 2, "deepseek": 1 / 4,
          "int8 experts": 1 / 2}
"""What a device has of the weights, but for up to ``WHOLE`` that all have: norms, routers, positions, kv heads."""
WHOLE = 0.12


@functools.cache
def _found(cases):
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8", "PYTHONPATH": str(TESTS)}
    done = subprocess.run([sys.executable, "-m", "parallel.tensor_cases", *cases], capture_output=True, text=True,
                          env=environment, cwd=TESTS, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {name: found for line in lines for name, found in line.items()}


def quick(case):
    return _found(QUICK)[case]


def long(case):
    return _found(LONG)[case]


def test_sizes_and_meshes_that_cannot_be_are_refused_with_what_can():
    parts = ("tensor_parallel_size=9 is not allowed: as many devices as there are, which is 8",
             "tensor_parallel_size=0 is not allowed: an integer >= 1",
             "tensor_parallel_size=True is not allowed: an integer >= 1",
             "tensor_parallel_size=3 is not allowed: one of 1, 2, 4, 8 for this model: its 8 attention heads do not",
             "tensor_parallel_size=5 is not allowed: one of 1, 2, 4, 8 for this model",
             "axes whose names say what they are for, not ['odd']", "1 where there is a mesh, which says it")
    found = quick("refusals")
    assert len(found) == len(parts)
    assert all(part in message for part, message in zip(parts, found, strict=True)), found


def test_two_layers_have_four_all_reduces_and_no_other_collective():
    found = quick("programs")
    assert (found["all_reduces"], found["others"]) == (4, 0)


def test_greedy_and_plainly_sampled_tokens_are_those_of_one_device_without_gathering_logits():
    found = quick("programs")
    assert found["same"] == [True, True]
    assert 0 < found["gathered"]["GREEDY"] < found["vocab"] / 8
    assert 0 < found["gathered"]["FULL"] <= 2 * 64 < found["vocab"]  # the lists of two devices that top-k looks at


def test_new_parameters_are_taken_without_compiling():
    found = quick("programs")
    assert found["updated"]
    assert not found["traced_again"]


@pytest.mark.sweep
@pytest.mark.parametrize("case", SHARES)
def test_several_devices_give_what_one_gives_with_a_part_of_the_weights_each(case):
    (found,) = long(case).values()
    assert found["equal"]
    assert found["furthest"] < (5e-3 if "int8" in case else 1e-4)
    assert found["params_kept"]
    assert SHARES[case] <= found["share"]["weights"] < SHARES[case] + WHOLE


@pytest.mark.sweep
def test_each_device_holds_its_kv_heads_alone_where_there_are_enough_and_all_latents():
    four_heads = 2 * 2 * 4 * 8 * 4  # layers, keys and values, heads, numbers, bytes of a token
    for case, share in (("llama", 4), ("llama, kv heads on two devices each", 4), ("llama4 by expert", 2)):
        (found,) = long(case).values()
        assert found["share"]["cache"] == four_heads / share
    (found,) = long("deepseek").values()
    assert found["share"]["cache"] == 2 * 20 * 4


@pytest.mark.sweep
def test_preempted_sequences_go_to_host_memory_and_back():
    found = long("swapping")
    assert found["equal"]
    assert found["furthest"] < 1e-4
    assert min(found["moved"]) > 0


@pytest.mark.sweep
def test_prefixes_are_found_again():
    found = long("swapping")
    assert found["again"]
    assert found["hits"] > 0


@pytest.mark.sweep
def test_a_checkpoint_is_loaded_in_parts_plain_or_quantized_written_back_as_it_was_and_put_to_sleep():
    found = long("folder")
    assert "a number that its rows divide by: layers.0.attention.out.weight is kept as Q4_K, whose blocks of 256 " in (
        found.pop("refused"))
    assert found == {"None": True, "written": True, "awake": True, "int8": True, "gguf": True}


@pytest.mark.sweep
def test_a_trainers_parameters_stay_where_they_are_if_they_lie_as_the_engines():
    found = long("trainer")
    assert found["apart"] == {"equal": True, "kept": 21, "of": 21}
    # What is kept as one matrix, qkv and gate_up, of both layers together, is put in order.
    assert found["stacked"]["equal"]
    assert found["stacked"]["of"] - found["stacked"]["kept"] == 4


@pytest.mark.sweep
def test_kept_programs_are_found_again_for_the_same_devices():
    assert long("kept") == {"two": {"equal": [True, True], "compiled": [0], "where": [2, 3]},
                            "other": {"equal": [True, True], "compiled": [0], "where": [5]}}
