"""What precisions and quantizations, of weights and of the KV cache, cost in quality: perplexity of a text, and how
often the likeliest token is that of float32.

    python benchmarks/quality.py [--model MODEL] [--text FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jaxllm
from jaxllm import LLM, SamplingParams

TEXT = Path(__file__).parents[1] / "tests" / "golden" / "alice.txt"


@dataclasses.dataclass(frozen=True)
class Choice:
    """One line of the table.

    written: what ``jaxllm.quantize`` makes of the model first, if anything. cache: the dtype of keys and values.
    """

    dtype: str
    quantization: str | None = None
    written: str | None = None
    cache: str = "auto"


CHOICES = (Choice("float32"), Choice("bfloat16"), Choice("bfloat16", "gguf"),
           Choice("bfloat16", "gguf-a8"), Choice("bfloat16", "int8"),
           Choice("float32", "int8"), Choice("bfloat16", "int8", "int8"),
           *(Choice("bfloat16", "gguf", kind) for kind in ("Q8_0", "Q4_1", "Q4_K", "Q4_0")),
           Choice("float32", cache="int8"), Choice("bfloat16", cache="int8"), Choice("bfloat16", "int8", cache="int8"))
"""The reference first."""


def logprobs_of(model: str, choice: Choice, text: str) -> tuple[list[float], list[int]]:
    """Of each token but the first: its log-probability, and the token that was the likeliest in its place."""
    with tempfile.TemporaryDirectory() as folder:
        if choice.written is not None:
            target = Path(folder, "model" if choice.written == "int8" else "model.gguf")
            jaxllm.quantize(model, target, choice.written)
            model = str(target)
        llm = LLM(model, dtype=choice.dtype, quantization=choice.quantization, kv_cache_dtype=choice.cache,
                  max_num_seqs=8, kv_cache_bytes="128M")
    (output,) = llm.generate(text, SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1), use_tqdm=False,
                             raise_on_error=True)
    lines = list(zip(output.prompt_token_ids, output.prompt_logprobs or [], strict=True))[1:]
    likeliest = [max(line, key=lambda token: line[token].logprob) for _, line in lines if line is not None]
    return [line[token].logprob for token, line in lines if line is not None], likeliest


def report(model: str, text: str, choices: Sequence[Choice] = CHOICES) -> str:
    """The table."""
    found = [logprobs_of(model, choice, text) for choice in choices]
    reference = found[0][1]
    lines = [f"{len(reference)} tokens", "", "| written as | dtype | quantization | KV cache | perplexity | likeliest "
             f"token as in {choices[0].dtype} |", "| --- | --- | --- | --- | --- | --- |"]
    for choice, (logprobs, likeliest) in zip(choices, found, strict=True):
        same = sum(map(int.__eq__, likeliest, reference)) / len(reference)
        perplexity = math.exp(-sum(logprobs) / len(logprobs))
        kept = choice.dtype if choice.cache == "auto" else choice.cache
        lines.append(f"| {choice.written or '-'} | {choice.dtype} | {choice.quantization or '-'} | {kept} | "
                     f"{perplexity:.3f} | {same:.1%} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="SmolLM2-135M-Instruct")
    parser.add_argument("--text", type=Path, default=TEXT, help="UTF-8; by default the beginning of a novel")
    chosen = parser.parse_args(arguments)
    print(report(chosen.model, chosen.text.read_text("utf-8")))


if __name__ == "__main__":
    main()
