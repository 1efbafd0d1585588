"""What precisions and quantizations, of weights and of the KV cache, cost in quality: perplexity of a text, and how
often the likeliest token is that of float32.

    python benchmarks/quality.py [--model MODEL] [--text FILE]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from jaxllm import LLM, SamplingParams

TEXT = Path(__file__).parents[1] / "tests" / "golden" / "alice.txt"
Choice = tuple[str, str | None, str]
"""Dtype, quantization of the weights, dtype of the cache."""
CHOICES: tuple[Choice, ...] = (
    ("float32", None, "auto"), ("bfloat16", None, "auto"), ("bfloat16", "gguf", "auto"), ("bfloat16", "int8", "auto"),
    ("float32", "int8", "auto"), ("float32", None, "int8"), ("bfloat16", None, "int8"), ("bfloat16", "int8", "int8"))
"""The reference first."""


def logprobs_of(model: str, dtype: str, quantization: str | None, cache: str, text: str
                ) -> tuple[list[float], list[int]]:
    """Of each token but the first: its log-probability, and the token that was the likeliest in its place."""
    llm = LLM(model, dtype=dtype, quantization=quantization, kv_cache_dtype=cache, max_num_seqs=8,
              kv_cache_bytes="128M")
    (output,) = llm.generate(text, SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1), use_tqdm=False,
                             raise_on_error=True)
    lines = list(zip(output.prompt_token_ids, output.prompt_logprobs or [], strict=True))[1:]
    likeliest = [max(line, key=lambda token: line[token].logprob) for _, line in lines if line is not None]
    return [line[token].logprob for token, line in lines if line is not None], likeliest


def report(model: str, text: str, choices: Sequence[Choice] = CHOICES) -> str:
    """The table."""
    found = [logprobs_of(model, *choice, text) for choice in choices]
    reference = found[0][1]
    lines = [f"{len(reference)} tokens", "", "| dtype | quantization | KV cache | perplexity | likeliest token as "
             f"in {choices[0][0]} |", "| --- | --- | --- | --- | --- |"]
    for (dtype, quantization, cache), (logprobs, likeliest) in zip(choices, found, strict=True):
        same = sum(map(int.__eq__, likeliest, reference)) / len(reference)
        perplexity = math.exp(-sum(logprobs) / len(logprobs))
        kept = dtype if cache == "auto" else cache
        lines.append(f"| {dtype} | {quantization or '-'} | {kept} | {perplexity:.3f} | {same:.1%} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--text", type=Path, default=TEXT, help="UTF-8; by default the beginning of a novel")
    chosen = parser.parse_args(arguments)
    print(report(chosen.model, chosen.text.read_text("utf-8")))


if __name__ == "__main__":
    main()
