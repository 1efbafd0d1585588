"""Writes the table of docs/models.md: ``python tests/models/model_table.py --write docs/models.md``.

Families and their variants are the registry's; features are what the translation of the fixtures' configs turns on.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

from jaxllm.models.config import DecoderConfig, MoEConfig
from jaxllm.models.families.common import HFConfig
from jaxllm.models.registry import FAMILIES, Family, family_of
from jaxllm.weights import resolve
from jaxllm.weights.names import ARCHITECTURES

FIXTURES = Path(__file__).parents[1] / "fixtures"
_GOLDEN = {"llama": "SmolLM2-135M-Instruct", "gemma3": "Gemma 3 270M"}
"""Of the families that are tested with real weights: which model (tests/conformance/test_golden_*.py)."""

_TABLE = re.compile(r"(<!-- begin families -->\n).*?(<!-- end families -->)", re.DOTALL)


def render(page: str) -> str:
    """The page with its table renewed."""
    return _TABLE.sub(lambda match: match[1] + "\n".join(_lines()) + "\n" + match[2], page)


def _lines() -> Iterator[str]:
    yield "| family | models | `architectures` | GGUF | features | tested on |"
    yield "|---|---|---|---|---|---|"
    for family in FAMILIES:
        stored = [name for name, found in ARCHITECTURES.items() if set(found.names) & set(family.architectures)]
        names = ", ".join(f"`{name}`" for name in family.architectures)
        yield (f"| {family.name} | {family.variants} | {names} | {', '.join(f'`{name}`' for name in stored) or '-'} | "
               f"{', '.join(_features_of(family))} | {'; '.join(_tests(family))} |")


def _features_of(family: Family) -> list[str]:
    configs = [family.decoder_config(config) for config in _fixtures(family).values()]
    return list(dict.fromkeys(feature for config in configs for feature in features(config)))


def _fixtures(family: Family) -> dict[str, HFConfig]:
    found = {path.parent.name: resolve(path.parent).config for path in sorted(FIXTURES.glob("*/config.json"))}
    return {name: config for name, config in found.items() if family_of(config) is family}


def _tests(family: Family) -> Iterator[str]:
    yield from (f"`tests/fixtures/{name}`" for name in _fixtures(family))
    if family.name in _GOLDEN:
        yield f"{_GOLDEN[family.name]}'s real weights"


def features(config: DecoderConfig) -> Iterator[str]:
    """What a config turns on, in words."""
    if config.sliding_window is not None:
        yield "sliding window in some layers" if config.full_layers else "sliding window"
    yield from _rope_features(config)
    if config.attention_chunk is not None:
        yield "attention in chunks"
    if config.attention_temperature is not None:
        yield "temperature by position"
    if config.attention_sinks:
        yield "attention sinks"
    if config.latent is not None:
        yield "latent attention" + ("" if config.latent.q_rank is None else ", queries of a low rank")
    if config.unrotated_layers:
        yield "layers without rotary embedding"
    if config.attention_bias:
        yield "biases of q, k, v" + (" and output" if config.attention_output_bias else "")
    if config.mlp_bias:
        yield "biases of the MLP"
    if config.head_bias:
        yield "bias of the head"
    if config.norm == "layer":
        yield "layer normalization" + ("" if config.norm_bias else " without bias")
    if config.embedding_norm:
        yield "normalized embedding"
    if config.qk_norm != "none":
        over = {"head": "", "heads": " of each head's own", "unit": " without weights",
                "all": " over all heads"}[config.qk_norm]
        yield f"norms of q and k{over}{' after the rotary embedding' if config.qk_norm_after_rope else ''}"
    if config.qkv_clip is not None:
        yield "clipped q, k, v"
    if config.parallel_residual:
        yield "attention and MLP side by side" + (" behind one norm" if config.shared_norm else "")
    if config.post_norms_of_sum:
        yield "norms after the residual sum"
    elif config.post_norms:
        yield f"norms after attention and MLP{'' if config.pre_norms else ', none before'}"
    if config.embedding_size is not None:
        yield "an embedding of another width"
    if config.norm_offset:
        yield "norm weights plus 1"
    if config.embedding_scale != 1:
        yield "scaled embedding"
    if config.residual_scale != 1:
        yield "scaled residuals"
    if config.moe is not None:
        yield from _expert_features(config.moe)
    if not config.gated_mlp:
        yield f"{_ACTIVATIONS[config.activation]} without a gate"
    elif config.activation != "silu":
        yield "GeGLU"
    if config.attention_scale is not None:
        yield "attention scale"
    if config.attention_soft_cap is not None:
        yield "soft cap of scores"
    if config.logit_scale != 1:
        yield "scaled logits"
    if config.logit_soft_cap is not None:
        yield "soft cap of logits"


_ACTIVATIONS = {"silu": "SiLU", "gelu": "GELU", "gelu_tanh": "GELU by tanh", "relu": "ReLU", "relu2": "squared ReLU"}


def _expert_features(moe: MoEConfig) -> Iterator[str]:
    scores = {"softmax": "", "sigmoid": " by sigmoid", "sparsemixer": " by sparsemixer"}[moe.scores]
    yield f"experts{scores}{', weights that add up to 1' if moe.normalize else ''}"
    if moe.correction:
        yield "corrected choice of experts"
    if moe.groups > 1:
        yield "experts of some groups alone"
    if moe.scale != 1:
        yield "scaled weights of experts"
    if moe.bias:
        yield "biases of router and experts"
    if moe.gate_limit is not None:
        yield "clamped gates"
    if moe.weigh_inputs:
        yield "weighted inputs of experts"
    if moe.shared_size is not None:
        yield f"a shared expert{' with a gate' if moe.shared_gate else ''}"
    if moe.dense_layers:
        yield "some layers without experts"


def _rope_features(config: DecoderConfig) -> Iterator[str]:
    rope = config.rope
    if config.learned_positions:
        yield "learned positions"
    if config.alibi_slopes is not None:
        yield "linear biases of attention (ALiBi)"
    if rope is None:
        return
    if rope.kind != "default":
        yield f"{rope.kind} rope"
    if rope.rotary_dim is not None and config.latent is None:
        yield "rotary embedding of a part of each head"
    if rope.interleaved:
        yield "interleaved rotary embedding"
    if config.local_rope is not None:
        yield "a rotary embedding of window layers"


def main() -> None:
    """The command line above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", type=Path, required=True)
    page = parser.parse_args().write
    page.write_text(render(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
