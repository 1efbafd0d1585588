"""``quality.py``: its figures are those of the log-probabilities it is given, and quantization shows in them."""

from __future__ import annotations

import math

import quality
from quality import Choice
from tiny_folder import write_tiny_folder

TEXT = "the quick brown fox jumps over the lazy dog"


def test_perplexity_is_the_exponential_of_the_mean_and_agreement_the_share_of_equal_tokens(monkeypatch):
    runs = {"float32": ([-1.0, -2.0], [3, 4]), "bfloat16": ([-2.0, -3.0], [3, 5])}
    monkeypatch.setattr(quality, "logprobs_of", lambda model, choice, text: runs[choice.dtype])
    table = quality.report("m", "", [Choice("float32"), Choice("bfloat16", "gguf", "Q8_0")]).splitlines()
    assert table[0] == "2 tokens"
    assert table[4:] == [f"| - | float32 | - | {math.exp(1.5):.3f} | 100.0% |",
                         f"| Q8_0 | bfloat16 | gguf | {math.exp(2.5):.3f} | 50.0% |"]


def test_a_real_model_is_measured_with_each_quantization(tmp_path):
    folder = str(write_tiny_folder(tmp_path / "tiny", scale=0.1))
    plain, likeliest = quality.logprobs_of(folder, Choice("float32"), TEXT)
    quantized, _ = quality.logprobs_of(folder, Choice("float32", "int8"), TEXT)
    assert quality.logprobs_of(folder, Choice("float32", written="int8"), TEXT)[0] == quantized
    assert len(plain) == len(likeliest) == len(TEXT) - 1
    assert all(value < 0 for value in plain)
    assert plain != quantized
    assert max(abs(one - other) for one, other in zip(plain, quantized, strict=True)) < 0.5
