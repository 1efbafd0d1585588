"""Make beam_smollm2_hf.json: beam searches by Hugging Face transformers on the real SmolLM2-135M-Instruct.

Run by hand, in an environment of its own: ``pip install torch==2.13.0 'transformers==5.24.*' gguf accelerate``, then
``python make_beam_smollm2_hf.py MODEL.gguf beam_smollm2_hf.json``. Float32, on the dequantized weights. The prompts are
those of smollm2_hf_f32.json, beside which this file lies. Tests only read the result.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig

ENDS = (2, 0)
SETTINGS = [(2, 1.0, False, 16), (4, 1.0, False, 24), (4, 0.0, True, 24), (3, 2.0, "never", 20), (5, -1.0, False, 12)]


def search(model, prompt_ids, setting):
    """One item: the setting, and the hypotheses with their scores."""
    width, penalty, early, max_tokens = setting
    prompt = torch.tensor([prompt_ids])
    output = model.generate(
        prompt, attention_mask=torch.ones_like(prompt),
        generation_config=GenerationConfig(
            num_beams=width, num_return_sequences=width, do_sample=False, max_new_tokens=max_tokens, pad_token_id=2,
            length_penalty=penalty, early_stopping=early, eos_token_id=list(ENDS), output_scores=True,
            return_dict_in_generate=True))
    lengths = (output.beam_indices >= 0).sum(dim=1)
    found = zip(output.sequences[:, len(prompt_ids):], lengths, output.sequences_scores, strict=True)
    return {"beam_width": width, "length_penalty": penalty, "early_stopping": early, "max_tokens": max_tokens,
            "eos_token_ids": list(ENDS), "prompt_ids": prompt_ids,
            "sequences": [{"token_ids": row[:length].tolist(), "score": float(score)} for row, length, score in found]}


def main(gguf, path):
    """Search from every short prompt in one of the settings, in turn."""
    folder, file = Path(gguf).parent, Path(gguf).name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32).eval()
    prompts = json.loads(Path(__file__).with_name("smollm2_hf_f32.json").read_text())["items"]
    short = [item["prompt_ids"] for item in prompts if len(item["prompt_ids"]) < 100]
    items = [search(model, ids, SETTINGS[number % len(SETTINGS)]) for number, ids in enumerate(short)]
    made_by = {"transformers": transformers.__version__, "torch": torch.__version__, "model": file}
    lines = ",\n".join(map(json.dumps, items))
    Path(path).write_text(f'{{"made_by": {json.dumps(made_by)},\n"items": [\n{lines}]}}\n')


if __name__ == "__main__":
    main(*sys.argv[1:])
