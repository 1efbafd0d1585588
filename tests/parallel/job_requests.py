"""An engine and its requests, the same in each process of a test and in the test itself."""

from support import prompts, run

from jaxllm import LLM, SamplingParams

REQUESTS = list(zip(prompts(5, seed=3, high=30), [
    SamplingParams(max_tokens=12, temperature=0.0),
    SamplingParams(max_tokens=9, temperature=0.8, seed=11),
    SamplingParams(max_tokens=7, temperature=1.0),  # of a seed that process 0 draws
    SamplingParams(max_tokens=8, temperature=0.7, n=2),
    SamplingParams(max_tokens=5, temperature=0.0),
], strict=True))


def make_engine(folder, tensor=1, **sizes):
    """The engine of an ``LLM`` over so many devices."""
    chosen = {"max_model_len": 64, "max_num_seqs": 4, "max_num_batched_tokens": 16, "block_size": 8,
              "kv_cache_bytes": 1 << 17, "dtype": "float32", **sizes}
    return LLM(folder, tensor_parallel_size=tensor, **chosen).engine


def outputs(engine, requests):
    """Each one's seeds, then its samples' tokens."""
    return [[*(output.seed for output in result.outputs), *(output.token_ids for output in result.outputs)]
            for result in run(engine, requests)]
