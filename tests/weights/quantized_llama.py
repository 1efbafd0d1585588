"""A small random Llama as a GGUF file whose tensors are of many kinds, as those of a mixture such as Q4_K_M are."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from kernels.quantized_rows import random_rows
from weights.checkpoint_files import FFN, HIDDEN, KV_HEADS, LLAMA_METADATA, VOCAB, write_gguf

from pallas_kernels.quantized import FORMATS

ROWS = {"attn_q": HIDDEN, "attn_k": KV_HEADS * 32, "attn_v": KV_HEADS * 32, "attn_output": HIDDEN, "ffn_gate": FFN,
        "ffn_up": FFN, "ffn_down": HIDDEN}
PLAIN = dict.fromkeys(ROWS, "Q4_K")
OTHER = {**PLAIN, "attn_v": "Q6_K", "ffn_down": "Q6_K"}
ODD = {"attn_q": "Q4_0", "attn_k": "Q4_0", "attn_v": "F16", "attn_output": "Q4_1", "ffn_gate": "Q8_0", "ffn_up": "Q8_0",
       "ffn_down": "IQ4_NL"}


def write_mixture(path: Path, layers: list[dict[str, str]] = (PLAIN, OTHER, PLAIN, OTHER, ODD), embedding: str = "Q6_K",
                  seed: int = 0) -> Path:
    """Each layer's kinds by the names of its matrices."""
    tensors = {"token_embd.weight": _tensor(embedding, VOCAB, HIDDEN, seed),
               "output_norm.weight": (np.ones(HIDDEN, np.float32), Type.F32)}
    for layer, kinds in enumerate(layers):
        for number, (name, kind) in enumerate(kinds.items()):
            columns = FFN if name == "ffn_down" else HIDDEN
            tensors[f"blk.{layer}.{name}.weight"] = _tensor(kind, ROWS[name], columns, seed + 10 * layer + number + 1)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = np.ones(HIDDEN, np.float32), Type.F32
    return write_gguf(path, tensors, {**LLAMA_METADATA, "llama.block_count": len(layers)})


def _tensor(kind: str, rows: int, columns: int, seed: int) -> tuple[np.ndarray, Type]:
    if kind in FORMATS:
        return random_rows(kind, columns, rows, seed)[0], Type[kind]
    if kind == "IQ4_NL":
        return random_rows("Q4_0", columns, rows, seed)[0], Type[kind]  # laid out alike
    values = np.random.default_rng(seed).normal(0, 0.02, (rows, columns)).astype(np.float32)
    return (values.astype(np.float16) if kind == "F16" else gguf.quants.quantize(values, Type[kind])), Type[kind]
