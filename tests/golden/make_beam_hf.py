"""Make beam_hf.json: beam searches by Hugging Face transformers over a table of bigram logits.

Run by hand, in an environment of its own: ``pip install torch==2.13.0 'transformers==5.24.*'``, then
``python make_beam_hf.py beam_hf.json``. Tests only read the result.
"""

from __future__ import annotations

import itertools
import json
import sys

import numpy as np
import torch
import transformers
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel, StoppingCriteria
from transformers.modeling_outputs import CausalLMOutput

SIZE = 64
ENDS = (7, 11)


class TableConfig(PretrainedConfig):
    model_type = "table"


class TableModel(PreTrainedModel, GenerationMixin):
    """The logits after token ``t`` are ``table[t]``."""

    config_class = TableConfig

    def __init__(self, table):
        super().__init__(TableConfig(vocab_size=SIZE, num_hidden_layers=1))
        self.table = torch.nn.Parameter(torch.tensor(table), requires_grad=False)

    def prepare_inputs_for_generation(self, input_ids, attention_mask=None, **_):
        return {"input_ids": input_ids}

    def forward(self, input_ids, attention_mask=None, **_):
        return CausalLMOutput(logits=self.table[input_ids])


class StopRuns(StoppingCriteria):
    """A sequence is finished where its output ends with one of these runs of ids, as with strings that they spell."""

    def __init__(self, runs, prompt_length):
        self.runs, self.prompt_length = runs, prompt_length

    def __call__(self, input_ids, scores, **_):
        outputs = input_ids[:, self.prompt_length:].tolist()
        return torch.tensor([any(output[-len(run):] == run for run in self.runs) for output in outputs])


def make_table():
    """Random logits of four decimals; the ends of sequence are likely enough to come up in every search."""
    table = np.random.default_rng(3).normal(0, 1.1, (SIZE, SIZE))
    table[:, ENDS] += [1.9, 1.2]
    return np.round(table, 4).astype(np.float32)


def configurations():
    """Every pair of values somewhere, without the whole product."""
    penalties, stopping, ends = (-1.0, 0.0, 0.5, 1.0, 2.0), (False, True, "never"), ((), ENDS[:1], ENDS)
    for number, (penalty, early, eos) in enumerate(itertools.product(penalties, stopping, ends)):
        width = 2 + number % 7
        returned = width if number % 3 else 1 + number % width
        yield {"beam_width": width, "length_penalty": penalty, "early_stopping": early, "eos_token_ids": list(eos),
               "max_tokens": (3, 9, 14, 20)[number % 4], "num_return_sequences": returned,
               "prompt": [(0, 21, 42)[number % 3], 5 + number]}
    # Runs that are likely, and so many that beams without a stopping continuation become rare.
    few, many = [[55, 59], [48, 36], [26, 7]], [[token] for token in range(0, SIZE, 2)]
    for number, (runs, early) in enumerate(itertools.product((few, many), stopping)):
        yield {"beam_width": 2 + number, "length_penalty": 1.0, "early_stopping": early, "max_tokens": 10,
               "eos_token_ids": list(ENDS[:number % 3]), "num_return_sequences": 2 + number, "prompt": [50 + number],
               "stop_runs": runs}
    for prompt in ([0], [1, 2], [30], [31]):
        yield {"beam_width": 1, "length_penalty": 1.0, "early_stopping": False, "eos_token_ids": list(ENDS),
               "max_tokens": 12, "num_return_sequences": 1, "prompt": prompt}
    yield {"beam_width": 8, "length_penalty": 1.0, "early_stopping": False, "eos_token_ids": list(ENDS),
           "max_tokens": 1, "num_return_sequences": 8, "prompt": [3]}


def search(model, config):
    """The hypotheses, best first: their ids and, but for greedy search, their scores."""
    prompt = torch.tensor([config["prompt"]])
    output = model.generate(
        prompt, attention_mask=torch.ones_like(prompt),
        stopping_criteria=[StopRuns(config.get("stop_runs", []), prompt.shape[1])],
        generation_config=GenerationConfig(
            num_beams=config["beam_width"], do_sample=False, max_new_tokens=config["max_tokens"], pad_token_id=0,
            length_penalty=config["length_penalty"], early_stopping=config["early_stopping"],
            eos_token_id=config["eos_token_ids"] or None, num_return_sequences=config["num_return_sequences"],
            use_cache=False, output_scores=True, return_dict_in_generate=True))
    tokens = output.sequences[:, prompt.shape[1]:]
    if config["beam_width"] == 1:
        return [{"token_ids": tokens[0].tolist(), "score": None}]
    lengths = (output.beam_indices >= 0).sum(dim=1)
    return [{"token_ids": row[:length].tolist(), "score": float(score)}
            for row, length, score in zip(tokens, lengths, output.sequences_scores, strict=True)]


def main(path):
    """Write the table, the configurations and what came of them."""
    table = make_table()
    model = TableModel(table)
    items = [{**config, "sequences": search(model, config)} for config in configurations()]
    made_by = {"transformers": transformers.__version__, "torch": torch.__version__}
    lines = ",\n".join(json.dumps(item) for item in items)
    rows = ",\n".join(json.dumps([round(float(x), 4) for x in row]) for row in table)
    with open(path, "w") as file:
        file.write(f'{{"made_by": {json.dumps(made_by)},\n"table": [\n{rows}],\n"items": [\n{lines}]}}\n')


if __name__ == "__main__":
    main(sys.argv[1])
