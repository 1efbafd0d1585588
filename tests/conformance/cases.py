"""Small inputs that have tripped engines like this one, from public reports, with the right behaviour.

Each has tests, marked ``@pytest.mark.case(number)``; ``test_cases.py`` sees to it.
"""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """A row: what goes in, what is right, and where the wrong was reported (project and issue numbers)."""

    given: str
    right: str
    reports: str


CASES = {
    1: Case("a temperature of 1e-4 or 1e-6 and peaked logits", "finite, and the tokens of greedy sampling",
            "vllm #3063, #2937"),
    2: Case("temperature 0 and top_k=1 on the same logits, a tie among them",
            "the same tokens; ties go to the lowest id in both", "vllm #5404"),
    3: Case("the stop string 'DE' inside one token 'DEF'", "the text ends before it; stop_reason is 'DE'",
            "vllm #3572, #3672; TGI #1039"),
    4: Case("a stop string spelled by several tokens, with logprobs, many tokens in a step",
            "as many logprobs as ids; nothing after the token that completed the stop",
            "vllm #47616; TensorRT-LLM #18190"),
    5: Case("a special token as stop id while special tokens are hidden", "the text is untouched",
            "vllm #3672, #3016, #3026, #3150"),
    6: Case("a stop string of one letter that never occurs", "a plain run to the length",
            "transformers #31435, #31448"),
    7: Case("a stop string that comes before min_tokens", "it is passed over; a later one stops", "vllm #21987"),
    8: Case("min_tokens with two end-of-sequence ids", "both are masked until then", "vllm #5849; sglang #31378"),
    9: Case("ignore_eos with further end-of-sequence ids", "exactly max_tokens", "vllm #4589; lighteval #1279"),
    10: Case("no max_tokens", "the room left in the context, said once", "vllm #5395, #655"),
    11: Case("prompts of max_model_len - 1, as long, and one longer, among good ones",
             "one token; an error each, naming both lengths; the good ones are answered",
             "lm-eval #2880; vllm #16732, #1655, #26081"),
    12: Case("an empty prompt, ids outside the vocabulary", "ValueError before anything is computed",
             "vllm #340, #13175"),
    13: Case("a prompt run plainly, then with prompt_logprobs, prefixes cached",
             "what comes without the cache, one entry for each token", "vllm #3251, #8268, #13105, #42019"),
    14: Case("two adapters of one name; one name reloaded with other weights", "no cached prefix is shared",
             "vllm #30931, #42125, #48352"),
    15: Case("a prompt before and after the weights change", "as in a fresh engine with the new weights",
             "vllm #9744; NeMo-RL #4018; RLinf #96; lmdeploy #4917; miles #2783"),
    16: Case("generation after the weights were dropped", "an error until they are set", "vllm #29341, #16564"),
    17: Case("a seeded request among unseeded ones", "the same tokens whatever its batch mates", "vllm #51226"),
    18: Case("n=4 with a seed, twice", "four different samples, the same each time", "vllm #1595"),
    19: Case("a seeded request preempted half way", "the same tokens", "vllm #16832"),
    20: Case("a bad word that is two tokens by itself and one after a space", "both forms are blocked",
             "vllm #23886, #32557, #32601"),
    21: Case("a logit_bias for an id outside the vocabulary, or with the key '5'", "ValueError; '5' means 5",
             "vllm #16529"),
    22: Case("more ids in the model than in the tokenizer, at a high temperature", "the others are never sampled",
             "vllm #13175; verl #1398; fairseq2 #1237"),
    23: Case("a text that begins with BOS, to generate and through chat", "exactly one BOS",
             "vllm #9519, #55288; LiveCodeBench #146"),
    24: Case("an emoji over several tokens, the output ending within it",
             "no U+FFFD before it is certain; in the end the tokenizer's decode of the ids",
             "vllm #8627; vllm-mlx #109"),
    25: Case("decoded_token of a byte", "neither empty nor U+FFFD: the byte can be told",
             "vllm #9463; djl-serving #3085"),
    26: Case("logprobs with temperature and top_p, raw and processed",
             "log-softmax of the logits; of what the draw saw; the output says which",
             "trl #4159; vllm #9453; TGI #2108, #1629"),
    27: Case("logprobs of the output but not of the prompt", "they are returned", "sglang #34627"),
    28: Case("a pool so small that requests are preempted, with logprobs", "as with a large pool", "vllm #16832"),
    29: Case("a progress bar over n=3, and a clock that stands still", "samples are counted; nothing fails",
             "vllm #14735, #28097"),
    30: Case("Ctrl-C within a step, then another call", "only its own results; all blocks free", "vllm #17738, #17273"),
    31: Case("a frequency penalty while steps overlap", "the newest token counts", "vllm #27878"),
    32: Case("a JSON constraint and too few tokens", "finish_reason is 'length'", "vllm #8350"),
    33: Case("n-gram speculation on a repetitive script", "the same tokens and logprobs", "vllm #41758, #17876"),
    34: Case("parameters that speculation cannot honour", "an error, or honoured", "vllm #31982"),
    35: Case("20 prompts of different lengths and max_tokens", "outputs in the prompts' order", "vllm #394"),
    36: Case("a batch file of 3 requests, killed after 2", "2 lines on disk; the next run does the third",
             "vllm #52505; ogx #5643"),
    37: Case("log-likelihoods of continuations: contexts that end in a space, BOS or none",
             "encoded together, the space moved, BOS counted", "lingua #28; lm-eval #4012"),
    38: Case("a second engine after the first is gone", "its memory is free again", "vllm #21073, #3281"),
    39: Case("50 random batches after the warm-up", "no new trace", "sglang-jax #609, #220, #284"),
    40: Case("beam search with a stop string, and the sign of length_penalty",
             "a documented rule; Hugging Face's results on the same logits", "vllm #9253, #7965"),
}
