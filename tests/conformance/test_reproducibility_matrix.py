"""Each request's tokens, texts and log-probability bits are the same alone, in a mix, however the mix is scheduled and
whatever is guessed ahead, through ``stream``, and in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conformance.matrix import SETTINGS, difference, make_llm, run_alone, run_mix, sized
from tiny_folder import write_tiny_folder

SOME = ("preempted to host memory", "one step at a time, preempted")  # whose programs are the same
# (mixes, settings, dtype)
CASES = [
    pytest.param(range(3), SOME, "bfloat16", id="3 mixes, bfloat16"),
    *(pytest.param(range(50), tuple(SETTINGS), dtype, id=f"50 mixes, {dtype}", marks=pytest.mark.sweep)
      for dtype in ("float32", "bfloat16")),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model whose heads native attention takes: in bfloat16 the kernels are those of an ordinary model."""
    return write_tiny_folder(tmp_path_factory.mktemp("matrix") / "model", scale=0.25, num_attention_heads=2,
                             num_key_value_heads=1)


@pytest.fixture(scope="module")
def alone(folder):
    """Each mix's requests one at a time, with nothing cached and nothing guessed."""
    known = {}

    def look_up(dtype, seeds):
        missing = [seed for seed in seeds if (dtype, seed) not in known]
        if missing:
            llm = make_llm(folder, dtype, enable_prefix_caching=False, speculative_config=None)
            known.update({(dtype, seed): run_alone(llm, seed) for seed in missing})
        return {seed: known[dtype, seed] for seed in seeds}

    return look_up


@pytest.mark.parametrize(("seeds", "settings", "dtype"), CASES)
def test_no_setting_changes_a_bit_of_any_request(folder, alone, seeds, settings, dtype):
    expected, differences, figures = alone(dtype, seeds), [], {}
    for setting in settings:
        llm = make_llm(folder, dtype, **sized(dtype, SETTINGS[setting]))
        differences += [difference(seed, setting, expected[seed], run_mix(llm, seed)) for seed in seeds]
        figures[setting] = llm.stats()
    llm = make_llm(folder, dtype)
    differences += [difference(seed, "streamed", expected[seed], run_mix(llm, seed, stream=True)) for seed in seeds]
    differences += [difference(seed, "found in the prefix cache", expected[seed], run_mix(llm, seed)) for seed in seeds]
    found = [line for line in differences if line is not None]
    assert not found, f"{len(found)} of {len(differences)} differ; the first:\n" + "\n".join(found[:5])
    # The settings did what they are called.
    assert all(figures[setting].num_preemptions > 0 for setting in settings if "preempted" in setting)
    assert figures["preempted to host memory"].num_swapped_in > 0
    assert llm.stats().prefix_hit_rate > 0.2


@pytest.mark.parametrize(("seeds", "settings", "dtype"), CASES)
def test_another_process_gives_the_same_bits(folder, alone, seeds, settings, dtype):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent), "PYTHONHASHSEED": "7"}
    program = [sys.executable, str(Path(__file__).parent / "matrix.py"), str(folder), dtype, json.dumps(list(seeds))]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [difference(seed, "in another process", alone(dtype, [seed])[seed], got)
             for seed, got in zip(seeds, json.loads(done.stdout), strict=True)]
    assert not any(found), next(line for line in found if line)
