"""Write a GGUF file's model as a Hugging Face folder in bfloat16, for the peers that read those.

Runs under the Python of the venv ``hf``. Its tokenizer may differ from the file's own: the benchmarks use token ids.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    file = target / "config.json"
    file.write_text(json.dumps(with_rope_as_before(json.loads(file.read_text())), indent=2) + "\n")
    transformers.AutoTokenizer.from_pretrained(**place).save_pretrained(target)


def with_rope_as_before(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with its rotary bases where transformers 4 had them: version 5 finds them there too, exporters
    of other engines that are made for version 4 find them nowhere else. Anything but plain rotations stays as it is."""
    rope = config.get("rope_parameters", {})
    layers = {"rope_theta": rope.get("full_attention"), "rope_local_base_freq": rope.get("sliding_attention")}
    bases = layers if all(layers.values()) else {"rope_theta": rope}
    if any(each.get("rope_type") != "default" for each in bases.values()):
        return config
    kept = {name: value for name, value in config.items() if name != "rope_parameters"}
    return {**kept, **{name: each["rope_theta"] for name, each in bases.items()}}


def main(arguments: Sequence[str] | None = None) -> None:
    """Convert one file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a .gguf file")
    parser.add_argument("target", type=Path, help="the folder to write")
    chosen = parser.parse_args(arguments)
    convert(chosen.source, chosen.target)


if __name__ == "__main__":
    main()
