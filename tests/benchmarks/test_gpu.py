"""``gpu.py`` without a GPU: every kernel that runs here is checked, the rest is left out and named."""

from __future__ import annotations

import json

import gpu
import gpu_correctness
import pytest
from gpu_model import tokens_per_second

from pallas_kernels import grouped_matmul


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(gpu, "FEW_HEADS", {"tiny": (2, 1, 64)})
    monkeypatch.setattr(gpu_correctness, "OPTIONS", ({}, {"window": 100, "soft_cap": 20.0}, {"pool": "float8_e4m3fn"}))


def test_on_a_cpu_it_checks_what_runs_there_and_says_what_it_leaves_out(tmp_path, capsys):
    gpu.main(["--json", str(tmp_path / "report.json")])
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["skipped"] == "no GPU here: decode, prefill, deterministic, tokens per second were left out"
    assert report["skipped"] in capsys.readouterr().out
    ran = {(line["operation"], line["by"]) for line in report["correctness"] if "units" in line}
    operations = ("paged_attention", "kv_write", "rope_kv_write", "grouped_matmul", "matmul")
    assert ran == {(operation, name) for operation in operations
                   for name in gpu_correctness.implementations(operation)}
    assert all(line["units"] <= 1 for line in report["correctness"] if "units" in line)
    assert [line for line in report["correctness"] if "units" not in line and line["by"] == "xla"] == []


def test_a_wrong_result_is_said_and_fails(monkeypatch):
    def wrong(*operands):
        return grouped_matmul(*operands).at[3].add(1)

    monkeypatch.setattr(gpu_correctness, "grouped_matmul", wrong)
    monkeypatch.setattr(gpu_correctness, "OPTIONS", ())
    with pytest.raises(SystemExit, match=r"results are wrong: .*grouped_matmul"):
        gpu.main([])


def test_the_engine_is_timed_on_a_random_model():
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 64, "hidden_size": 32,
              "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32,
              "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    lines = tokens_per_second(config, (1, 3), prompt_tokens=8, new_tokens=4)
    assert [(line["batch"], line["new"]) for line in lines] == [(1, 4), (3, 4)]
    assert all(line["tokens/s"] > 0 for line in lines)
