"""What an engine gives over the devices of two processes, of two each, for comparison with one device's."""

import jax
import numpy as np
from parallel.job_requests import REQUESTS, outputs
from support import greedy, pool_bytes_of, prompts, run

from jaxllm import LLM, SamplingParams

SIZES = {"max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 16, "block_size": 8, "dtype": "float32",
         "kv_cache_bytes": 1 << 18, "seed": 3, "max_logprobs": -1}
BLOCKS = 11
UNEVEN = list(zip(prompts(3, seed=4), [greedy(40), greedy(3), greedy(2)], strict=True))
"""Of two replicas one is done long before the other."""
MANY = [(prompt, greedy(20)) for prompt in prompts(4, seed=5, low=15, high=25)]
"""More than a small cache holds at once."""
REPORTING = list(zip(prompts(4, seed=6, low=5, high=20), [
    SamplingParams(max_tokens=4, temperature=0.0, logprobs=3),
    SamplingParams(max_tokens=4, temperature=0.9, seed=4, top_k=20, presence_penalty=0.5, prompt_logprobs=2),
    SamplingParams(max_tokens=2, temperature=0.0, logprobs=-1),
    SamplingParams(max_tokens=5, temperature=0.7, seed=8, min_p=0.01, n=3),
], strict=True))
TEXTS = ["The capital of France", "is"]


def _mesh(*shape, axes, devices=None):
    found = jax.devices() if devices is None else [jax.devices()[number] for number in devices]
    return jax.sharding.Mesh(np.array(found).reshape(shape), axes)


def _small():
    # Of each device: one of the four kv heads.
    return {"kv_cache_bytes": pool_bytes_of(BLOCKS, 8, layers=4, kv_heads=1, head_dim=8, dtype="float32"),
            "swap_space": "1M"}


MESHES = {
    "P2 x T2": lambda: {"pipeline_parallel_size": 2, "tensor_parallel_size": 2},
    "D2 x T2": lambda: {"data_parallel_size": 2, "tensor_parallel_size": 2},
    "P4": lambda: {"pipeline_parallel_size": 4},
    "D2 x P2": lambda: {"data_parallel_size": 2, "pipeline_parallel_size": 2},
    "P2": lambda: {"mesh": _mesh(2, axes=("pipe",), devices=[0, 2])},
    "D2": lambda: {"mesh": _mesh(2, axes=("data",), devices=[0, 2])},
    "T2 of both x P2": lambda: {"mesh": _mesh(2, 2, axes=("tensor", "pipe"))},
    "D2 x P2 of both": lambda: {"mesh": _mesh(2, 2, axes=("pipe", "data"))},
    "T4 and swapping": lambda: {"tensor_parallel_size": 4, **_small()},
    "P2 x T2 and swapping": lambda: {"pipeline_parallel_size": 2, "tensor_parallel_size": 2, **_small()},
}


def found(folder, name=None):
    """All that is compared, over a mesh of ``MESHES``, or on one device. Every process has the same."""
    llm = LLM(folder, **SIZES | ({} if name is None else MESHES[name]()))
    engine = llm.engine
    results = {"many": outputs(engine, MANY)}
    if name is None or "swapping" not in name:
        results |= {"tokens": outputs(engine, REQUESTS), "uneven": outputs(engine, UNEVEN)}
        reports = [_numbers(output) for output in run(engine, REPORTING)]
        generated = llm.generate(TEXTS, SamplingParams(max_tokens=5, temperature=0.0), use_tqdm=False)
        embeddings = [output.outputs.embedding for output in llm.embed(TEXTS, use_tqdm=False)]
        results |= {"texts": [output.outputs[0].text for output in generated], "numbers": [*reports, *embeddings]}
    llm.sleep(1)
    llm.wake_up()
    stats = engine.stats()
    return {**results, "awake": [tokens for _, tokens in outputs(engine, UNEVEN[1:])],
            "replicas": [replica.num_generated_tokens > 0 for replica in engine.replica_stats()],
            "swapped": [stats.num_swapped_out, stats.num_swapped_in]}


def _numbers(output):
    """Log-probabilities of tokens, each with its id, one after the other."""
    tokens = [*(output.prompt_logprobs or []), *(token for sample in output.outputs for token in sample.logprobs or [])]
    listed = [number for token in tokens if token for key, value in sorted(token.items())
              for number in (key, value.logprob)]
    return [*(float(token) for sample in output.outputs for token in sample.token_ids), *listed]
