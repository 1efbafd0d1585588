"""Write a GGUF file's model as a Hugging Face folder in bfloat16, for the peers that read those.

Runs under the Python of the venv ``hf``. Its tokenizer may differ from the file's own: the benchmarks use token ids.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers


def convert(source: Path, target: Path) -> None:
    """Write ``target``, the weights rounded once from what the file's stand for."""
    place = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.bfloat16)
    # What remembers that it came from a GGUF file refuses to be saved, so another one takes its weights.
    config = model.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    plain = type(model)(config).to(torch.bfloat16)
    plain.load_state_dict(model.state_dict())
    plain.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(**place).save_pretrained(target)


def main(arguments: Sequence[str] | None = None) -> None:
    """Convert one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a .gguf file")
    parser.add_argument("target", type=Path, help="the folder to write")
    chosen = parser.parse_args(arguments)
    convert(chosen.source, chosen.target)


if __name__ == "__main__":
    main()
