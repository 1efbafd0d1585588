"""Random batches that use every sampling option."""

from __future__ import annotations

import numpy as np
from support import EOS, TINY, prompts

from jaxllm.sampling_params import SamplingParams


def mixed_requests(count, seed):
    """Random requests that use every sampling option, with prompts that share prefixes."""
    generator = np.random.default_rng(seed)
    texts = prompts(count, seed, low=2, high=60)
    shared = prompts(1, seed + 1, low=40, high=41)[0]
    requests = []
    for number, prompt in enumerate(texts):
        if number % 3 == 0:
            prompt = shared[: generator.integers(8, 40)] + prompt[:20]
        options = {"max_tokens": int(generator.integers(1, 24)), "seed": int(generator.integers(2**62)),
                   "temperature": float(generator.choice([0.0, 0.5, 1.0, 1.5])),
                   "ignore_eos": bool(generator.integers(2)), "priority": int(generator.integers(3))}
        more = {
            "top_k": int(generator.integers(1, 30)), "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.2,
            "presence_penalty": 0.5, "frequency_penalty": 0.3, "logprobs": int(generator.integers(0, 6)),
            "prompt_logprobs": int(generator.integers(0, 4)), "n": int(generator.integers(2, 5)),
            "logit_bias": {int(generator.integers(8, 190)): 3.0}, "min_tokens": 1,
            "allowed_token_ids": sorted(set(generator.integers(0, TINY["vocab_size"], 60).tolist()) | {EOS}),
            "banned_token_ids": [int(generator.integers(8, 190))], "stop_token_ids": [int(generator.integers(8, 190))],
        }
        options |= {name: value for name, value in more.items() if generator.random() < 0.25}
        if not set(options.get("allowed_token_ids", [0, 1])) - set(options.get("banned_token_ids", [])):
            del options["banned_token_ids"]
        requests.append((prompt, SamplingParams(**options)))
    return requests
