"""How many tokens a second does the engine make of a random model of Llama 3 8B's shape? A part of gpu.py."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm import LLM, SamplingParams

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128_256, "hidden_size": 4096,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "tie_word_embeddings": False,
}


def tokens_per_second(
    config: dict[str, Any], batches: Iterable[int], prompt_tokens: int = 128, new_tokens: int = 128, **options: Any
) -> list[dict[str, Any]]:
    """Lines of output tokens a second, prompts included in the time, after a run that compiles."""
    batches = list(batches)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        llm = LLM(folder, skip_tokenizer_init=True, load_format="dummy", max_num_seqs=max(batches),
                  max_model_len=prompt_tokens + new_tokens, enable_prefix_caching=False, **options)
    rng = np.random.default_rng(0)
    found = []
    for batch in batches:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, detokenize=False)
        times = []
        for _ in range(2):
            prompts = [{"prompt_token_ids": ids} for ids in rng.integers(
                0, config["vocab_size"], (batch, prompt_tokens)).tolist()]
            begin = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            times.append(time.perf_counter() - begin)
        found.append({"batch": batch, "prompt": prompt_tokens, "new": new_tokens, **options,
                      "tokens/s": batch * new_tokens / times[-1]})
    return found
