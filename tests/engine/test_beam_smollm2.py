"""Beam searches on the real SmolLM2-135M-Instruct against Hugging Face's, in float32 on the same dequantized weights.

Oracle: tests/golden/beam_smollm2_hf.json (make_beam_smollm2_hf.py). The best hypothesis must be the same. Sums of
log-probabilities may differ by 1e-2, as two float32 implementations sum in different orders, token after token; and
where two candidates are that close, one of the others may be another.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import run

from jaxllm.beam_search import BeamSearchParams
from jaxllm.engine.build import build_engine
from jaxllm.engine.sizes import EngineSizes
from jaxllm.loading import load_weights, open_model
from jaxllm.weights import resolve

GOLDEN = json.loads(Path(__file__).parents[1].joinpath("golden/beam_smollm2_hf.json").read_text())["items"]


@pytest.mark.sweep
def test_float32_finds_the_golden_hypotheses():
    source = resolve("SmolLM2-135M-Instruct")
    opened = open_model(source, "float32")
    params = load_weights(source, opened)
    sizes = EngineSizes(max_model_len=160, max_num_seqs=16, max_num_batched_tokens=128, block_size=32,
                        kv_cache_bytes=64 << 20)
    engine = build_engine(opened.model, lambda: params, sizes, eos_token_ids=GOLDEN[0]["eos_token_ids"])
    outputs = run(engine, [
        (item["prompt_ids"], BeamSearchParams(
            item["beam_width"], item["max_tokens"], length_penalty=item["length_penalty"],
            early_stopping=item["early_stopping"])) for item in GOLDEN])
    for item, output in zip(GOLDEN, outputs, strict=True):
        golden = {tuple(each["token_ids"]): each["score"] for each in item["sequences"]}
        assert tuple(output.sequences[0].token_ids) == next(iter(golden))
        ours = {tuple(found.token_ids): found.cum_logprob for found in output.sequences}
        common = ours.keys() & golden.keys()
        assert len(common) >= len(golden) - 1
        for token_ids in common:
            total = golden[token_ids] * len(token_ids) ** item["length_penalty"]
            assert ours[token_ids] == pytest.approx(total, abs=1e-2)
