"""Random mixes of requests that use every option, the settings they are run under, and what must be equal in all.

Run as a program it prints the outputs of every mix as JSON, for comparison with another process.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from support import by_policy, pool_bytes_of

from jaxllm import LLM, SamplingParams
from jaxllm.structured import StructuredOutputsParams

BLOCK = 8
SIZES = {"max_model_len": 72, "max_num_seqs": 8, "max_num_batched_tokens": 64, "block_size": BLOCK,
         "kv_cache_bytes": 4 << 20, "max_logprobs": -1}
GRAMMARS = [
    {"regex": "[ab]{3,9}"}, {"choice": ["yes", "no", "maybe"]}, {"json_object": True},
    {"json": {"type": "array", "items": {"type": "boolean"}}}, {"grammar": 'start: "x" (" " "y")*'},
]


def _no_echo(logits, state):
    """The newest token made less likely."""
    last = state.token_ids[state.num_prompt + state.num_output - 1]
    return logits.at[last].add(-state.arguments[0])


def make_llm(folder, dtype, **sizes):
    return LLM(folder, dtype=dtype, logits_processors={"no_echo": _no_echo}, **{**SIZES, **sizes})


def preempting(dtype):
    """Sizes of a pool in which the requests of a mix preempt each other."""
    return {"kv_cache_bytes": pool_bytes_of(10, BLOCK, layers=2, kv_heads=1, head_dim=16, dtype=dtype)}


SETTINGS = {
    "preempted to host memory": {"pool": "small", "swap_space": "8M"},
    "token budget 23, two at a time": {"max_num_batched_tokens": 23, "max_num_seqs": 2},
    "one step at a time, preempted": {"overlap": False, "pool": "small"},
    "together": {},
    "token budget 16": {"max_num_batched_tokens": 16},
    "preempted": {"pool": "small"},
    "by priority": {"scheduling_policy": "priority", "pool": "small"},
    "no prefix cache": {"enable_prefix_caching": False},
    "room for guesses": {"max_num_seqs": 32, "speculative_config": {"prompt_lookup_min": 1}},
    "nothing guessed": {"speculative_config": None},
}


def sized(dtype, settings):
    sizes = {name: value for name, value in settings.items() if name != "pool"}
    return sizes | (preempting(dtype) if settings.get("pool") == "small" else {})


def mix(seed):
    """Three to seven (prompt, parameters)."""
    rng = np.random.default_rng(1000 + seed)
    letters = list("abcdefgh .,{}[]\"")
    shared = "".join(rng.choice(letters, 24))
    return [_request(rng, letters, shared) for _ in range(rng.integers(3, 8))]


def _request(rng, letters, shared):
    def chance(share):
        return rng.random() < share

    prompt = "".join(rng.choice(letters, rng.integers(1, 30)))
    prompt = shared[:rng.integers(8, 24)] + prompt[:8] if chance(0.4) else prompt
    options = {"max_tokens": int(rng.integers(1, 33)), "seed": int(rng.integers(2**62)),
               "temperature": float(rng.choice([0.0, 0.4, 1.0, 1.7])), "priority": int(rng.integers(3))}
    more = {
        "n": int(rng.integers(2, 4)), "top_k": int(rng.integers(1, 40)), "top_p": float(rng.uniform(0.3, 1)),
        "min_p": 0.03, "presence_penalty": 0.6, "frequency_penalty": 0.4, "repetition_penalty": 1.3,
        "logit_bias": {int(rng.integers(250)): 2.5}, "banned_token_ids": [int(rng.integers(250))], "min_tokens": 1,
        "bad_words": ["a", "bc"], "stop": ["e", "fg"], "stop_token_ids": [int(rng.integers(250))],
        "prompt_logprobs": int(rng.choice([0, 3, -1])), "logprob_token_ids": [1, int(rng.integers(2, 250))],
        "logprobs": int(rng.choice([0, 2, 5, 25, -1])), "logits_processors": {"no_echo": [float(rng.uniform(1, 9))]},
        "include_stop_str_in_output": True, "truncate_prompt_tokens": 12, "skip_special_tokens": False,
        "cache_salt": "salt", "ignore_eos": True,
    }
    options |= {name: value for name, value in more.items() if chance(0.2)}
    if chance(0.4):
        options["logprobs_mode"] = "processed_logprobs"
    if chance(0.3):
        options["structured_outputs"] = StructuredOutputsParams(**GRAMMARS[rng.integers(len(GRAMMARS))])
        # What could leave a grammar without any token to go on with.
        for name in ("banned_token_ids", "bad_words", "min_tokens", "ignore_eos"):
            options.pop(name, None)
    return prompt, SamplingParams(**options)


def plain(output):
    """Everything of an output that must be equal, as JSON's types: exact, since floats are written to be read back."""
    return {
        "prompt": output.prompt_token_ids,
        "error": None if output.error is None else output.error.message,
        "prompt logprobs": _lines(output.prompt_logprobs),
        "samples": [{
            "ids": sample.token_ids, "text": sample.text, "finish": [sample.finish_reason, sample.stop_reason],
            "seed": sample.seed, "sum": sample.cumulative_logprob, "mass": sample.kept_mass,
            "logprobs": _lines(sample.logprobs),
        } for sample in output.outputs],
    }


def _lines(lines):
    if lines is None:
        return None
    return [None if line is None else _digest(line) if len(line) > 40 else
            [[token, one.logprob, one.rank, one.decoded_token, one.raw_logprob] for token, one in line.items()]
            for line in lines]


def _digest(line):
    """A whole vocabulary, in short."""
    values = np.array([[token, one.logprob, one.raw_logprob or 0.0] for token, one in line.items()])
    return [len(line), *(float(values[:, column] @ np.arange(1, len(line) + 1)) for column in range(3))]


def run_mix(llm, seed, stream=False):
    prompts, params = map(list, zip(*mix(seed), strict=True))
    params = [by_policy(llm.engine, each) for each in params]
    if not stream:
        return [plain(output) for output in llm.generate(prompts, params, use_tqdm=False)]
    last = {}
    for output in llm.stream(prompts, params):
        last[output.request_id] = output
    return [plain(last[request_id]) for request_id in sorted(last, key=lambda name: int(name.split("-")[1]))]


def run_alone(llm, seed):
    return [plain(output) for prompt, params in mix(seed)
            for output in llm.generate(prompt, by_policy(llm.engine, params), use_tqdm=False)]


def difference(seed, setting, expected, got):
    """The first difference between two runs of a mix, in words; ``None`` where there is none."""
    for number, (want, have) in enumerate(zip(expected, got, strict=True)):
        if (path := _first_difference(want, have)) is not None:
            place, wanted, found = path
            prompt, params = mix(seed)[number]
            return (f"mix {seed}, request {number}, {setting}: {place} is {found!r}, but {wanted!r} alone; "
                    f"prompt {prompt!r}, {params}")
    return None


def _first_difference(want, have, place=""):
    if isinstance(want, dict) and isinstance(have, dict):
        pairs = [(f"{place}.{name}", want[name], have[name]) for name in want]
    elif isinstance(want, list) and isinstance(have, list) and len(want) == len(have):
        pairs = [(f"{place}[{index}]", *pair) for index, pair in enumerate(zip(want, have, strict=True))]
    else:
        return None if want == have else (place, want, have)
    return next((found for at, *pair in pairs if (found := _first_difference(*pair, at)) is not None), None)


if __name__ == "__main__":
    folder, dtype, seeds = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    llm = make_llm(folder, dtype)
    print(json.dumps([run_mix(llm, seed) for seed in seeds]))
