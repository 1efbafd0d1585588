"""Options for several devices, in processes that have eight virtual CPU devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from models.fixture_models import FIXTURES
from tiny_folder import write_tiny_folder


def run(*arguments):
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    return subprocess.run([sys.executable, "-m", "jaxllm", *map(str, arguments)], env=environment, capture_output=True,
                          text=True, check=False)


def test_info_describes_replicas_and_stages(tmp_path):
    folder = write_tiny_folder(tmp_path / "model", num_hidden_layers=4)
    sizes = "--kv-cache-bytes", "64M", "--dtype", "float32", "--json"
    one = json.loads(run("info", folder, *sizes).stdout)
    done = run("info", folder, "--data-parallel-size", 2, "--pipeline-parallel-size", 2, *sizes)
    found = json.loads(done.stdout)
    running = found["running"]
    assert {name: running[name] for name in ("devices", "replicas", "stages")} == {
        "devices": 4, "replicas": 2, "stages": 2}
    assert running["weight_bytes"] == one["running"]["weight_bytes"]
    assert one["running"]["weight_bytes"] / 2 <= running["weight_bytes_per_device"] < one["running"]["weight_bytes"]
    assert 2 * running["kv_bytes_per_token"] == one["running"]["kv_bytes_per_token"]


@pytest.mark.sweep
@pytest.mark.parametrize(("stages", "devices", "said"), [
    (1, 2, "dealt out over 2 devices"), (2, 1, "all on one device")])
def test_info_says_over_how_many_devices_experts_are_dealt_out(stages, devices, said):
    """Over replicas, but not where these are pipelines."""
    asked = ("info", FIXTURES / "granitemoe", "--data-parallel-size", 2, "--pipeline-parallel-size", stages,
             "--enable-expert-parallel", "--kv-cache-bytes", "1M")
    assert json.loads(run(*asked, "--json").stdout)["running"]["devices_that_share_experts"] == devices
    assert said in run(*asked).stdout


def test_generate_gives_one_devices_text(tmp_path):
    folder = write_tiny_folder(tmp_path / "model")
    common = "generate", "--model", folder, "--max-tokens", 5, "--temperature", 0, "--dtype", "float32", "-q", "hello"
    several = run(*common, "--data-parallel-size", 2, "--pipeline-parallel-size", 2)
    assert several.returncode == 0, several.stderr
    assert several.stdout == run(*common).stdout


def test_more_devices_than_there_are_are_refused(tmp_path):
    folder = write_tiny_folder(tmp_path / "model")
    done = run("info", folder, "--data-parallel-size", 9)
    assert done.returncode == 1
    assert "data_parallel_size=9 is not allowed: as many devices as there are, which is 8" in done.stderr
