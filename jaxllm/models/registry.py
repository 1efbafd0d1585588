"""Which family serves which architecture."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Collection, Mapping

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.config import DecoderConfig
from jaxllm.models.families import (
    bloom,
    cohere,
    deepseek,
    ernie4_5,
    exaone4,
    falcon,
    gemma,
    glm,
    gpt2,
    gpt_neox,
    gpt_oss,
    gptj,
    granite,
    hunyuan,
    llama,
    llama4,
    mistral,
    mixtral,
    mpt,
    nemotron,
    olmo,
    olmoe,
    opt,
    phi,
    phi3,
    phimoe,
    qwen,
    qwen_moe,
    seed_oss,
    smollm3,
    stablelm,
    starcoder2,
)
from jaxllm.models.families.common import HFConfig
from jaxllm.models.families.names import Aliases, Names, ignored_tensors, weight_map, with_aliases
from jaxllm.models.model import Model
from jaxllm.weights.spec import Piece


@dataclasses.dataclass(frozen=True)
class Family:
    """What a family file provides.

    variants: the published models that it serves. architectures: of ``config.json``. decoder_config: its translation.
    names: of the weights, or what gives them for a config. aliases: other names that checkpoints use. ignored: patterns
        of tensors that this decoder has no use for.
    """

    name: str
    variants: str
    architectures: tuple[str, ...]
    decoder_config: Callable[[HFConfig], DecoderConfig]
    names: Names | Callable[[DecoderConfig], Names]
    aliases: Aliases = ()
    ignored: Callable[[DecoderConfig], tuple[str, ...]] = lambda config: ()

    def weight_map(self, model: Model, stored: Collection[str] = ()) -> dict[str, tuple[Piece, ...]]:
        """For each parameter, the checkpoint tensors that make it up, stacked along their first axis. stored: the names
        of those that there are, which decide where a tensor has several."""
        names = self.names(model.config) if callable(self.names) else self.names
        return with_aliases(weight_map(names, model.config, model.specs), self.aliases, stored)

    def ignored_tensors(self, config: DecoderConfig) -> tuple[str, ...]:
        """Patterns of checkpoint tensors that hold nothing the config and the other tensors do not say."""
        return (*ignored_tensors(config), *self.ignored(config))


FAMILIES = (
    Family("llama", "Llama 1 to 3.3, SmolLM2, TinyLlama", llama.ARCHITECTURES, llama.decoder_config, llama.NAMES),
    Family("llama4", "Llama 4 Scout and Maverick, text alone", llama4.ARCHITECTURES, llama4.decoder_config,
           llama4.NAMES),
    Family("mistral", "Mistral 7B, Nemo, Small 3", mistral.ARCHITECTURES, mistral.decoder_config, mistral.NAMES),
    Family("mixtral", "Mixtral 8x7B and 8x22B", mixtral.ARCHITECTURES, mixtral.decoder_config, mixtral.names),
    Family("qwen2", "Qwen 2 and 2.5", qwen.QWEN2_ARCHITECTURES, qwen.qwen2_config, qwen.QWEN2_NAMES),
    Family("qwen3", "Qwen 3, dense", qwen.QWEN3_ARCHITECTURES, qwen.qwen3_config, qwen.QWEN3_NAMES),
    Family("qwen2_moe", "Qwen 1.5 MoE, Qwen 2 57B-A14B", qwen_moe.QWEN2_ARCHITECTURES, qwen_moe.qwen2_moe_config,
           qwen_moe.qwen2_moe_names),
    Family("qwen3_moe", "Qwen 3 30B-A3B and 235B-A22B, Qwen 3 Coder", qwen_moe.QWEN3_ARCHITECTURES,
           qwen_moe.qwen3_moe_config, qwen_moe.qwen3_moe_names),
    Family("gemma", "Gemma 1, CodeGemma", gemma.GEMMA1_ARCHITECTURES, gemma.gemma1_config, gemma.GEMMA1_NAMES),
    Family("gemma2", "Gemma 2", gemma.GEMMA2_ARCHITECTURES, gemma.gemma2_config, gemma.GEMMA2_NAMES),
    Family("gemma3", "Gemma 3, text", gemma.GEMMA3_ARCHITECTURES, gemma.gemma3_config, gemma.GEMMA3_NAMES),
    Family("granite", "Granite 3, dense", granite.ARCHITECTURES, granite.decoder_config, granite.NAMES),
    Family("granitemoe", "Granite 3, 1B-A400M and 3B-A800M", granite.MOE_ARCHITECTURES, granite.moe_config,
           granite.MOE_NAMES),
    Family("olmo2", "OLMo 2", olmo.OLMO2_ARCHITECTURES, olmo.olmo2_config, olmo.NAMES),
    Family("olmo3", "OLMo 3", olmo.OLMO3_ARCHITECTURES, olmo.olmo3_config, olmo.NAMES),
    Family("olmoe", "OLMoE", olmoe.ARCHITECTURES, olmoe.decoder_config, olmoe.names),
    Family("phi", "Phi-1, Phi-1.5, Phi-2", phi.ARCHITECTURES, phi.decoder_config, phi.NAMES),
    Family("phi3", "Phi-3, Phi-3.5 mini, Phi-4, Phi-4 mini", phi3.ARCHITECTURES, phi3.decoder_config, phi3.NAMES),
    Family("phimoe", "Phi-3.5 MoE", phimoe.ARCHITECTURES, phimoe.decoder_config, phimoe.names),
    Family("seed_oss", "Seed-OSS", seed_oss.ARCHITECTURES, seed_oss.decoder_config, seed_oss.NAMES),
    Family("smollm3", "SmolLM3", smollm3.ARCHITECTURES, smollm3.decoder_config, smollm3.NAMES),
    Family("stablelm", "StableLM, StableLM 2", stablelm.ARCHITECTURES, stablelm.decoder_config, stablelm.names),
    Family("starcoder2", "StarCoder 2", starcoder2.ARCHITECTURES, starcoder2.decoder_config, starcoder2.NAMES),
    Family("gpt_neox", "GPT-NeoX, Pythia", gpt_neox.ARCHITECTURES, gpt_neox.decoder_config, gpt_neox.NAMES,
           gpt_neox.ALIASES),
    Family("gpt_oss", "gpt-oss-20b, gpt-oss-120b", gpt_oss.ARCHITECTURES, gpt_oss.decoder_config, gpt_oss.NAMES),
    Family("gptj", "GPT-J", gptj.ARCHITECTURES, gptj.decoder_config, gptj.NAMES),
    Family("gpt2", "GPT-2, DistilGPT-2", gpt2.ARCHITECTURES, gpt2.decoder_config, gpt2.NAMES, gpt2.ALIASES),
    Family("cohere", "Command R, Command R+, Aya 23 and Expanse", cohere.COHERE_ARCHITECTURES, cohere.cohere_config,
           cohere.COHERE_NAMES),
    Family("cohere2", "Command R7B, Command A", cohere.COHERE2_ARCHITECTURES, cohere.cohere2_config,
           cohere.COHERE2_NAMES),
    Family("glm", "GLM-4 of 2024", glm.GLM_ARCHITECTURES, glm.glm_config, glm.GLM_NAMES),
    Family("glm4", "GLM-4 of 2025, GLM-Z1", glm.GLM4_ARCHITECTURES, glm.glm4_config, glm.GLM4_NAMES),
    Family("deepseek_v2", "DeepSeek V2, V2-Lite, V2.5", deepseek.V2_ARCHITECTURES, deepseek.v2_config, deepseek.names),
    Family("deepseek_v3", "DeepSeek V3, R1, V3.1", deepseek.V3_ARCHITECTURES, deepseek.v3_config, deepseek.names,
           ignored=deepseek.ignored),
    Family("nemotron", "Nemotron 3 and 4, Minitron", nemotron.ARCHITECTURES, nemotron.decoder_config, nemotron.NAMES),
    Family("exaone4", "EXAONE 4", exaone4.ARCHITECTURES, exaone4.decoder_config, exaone4.NAMES),
    Family("ernie4_5", "Ernie 4.5, dense", ernie4_5.ARCHITECTURES, ernie4_5.decoder_config, ernie4_5.NAMES),
    Family("hunyuan_v1_dense", "Hunyuan, dense", hunyuan.ARCHITECTURES, hunyuan.decoder_config, hunyuan.NAMES),
    Family("falcon", "Falcon 7B to 180B, Falcon 2, Falcon-RW", falcon.ARCHITECTURES, falcon.decoder_config,
           falcon.names),
    Family("opt", "OPT", opt.ARCHITECTURES, opt.decoder_config, opt.NAMES, opt.ALIASES),
    Family("bloom", "BLOOM, BLOOMZ", bloom.ARCHITECTURES, bloom.decoder_config, bloom.NAMES, bloom.ALIASES),
    Family("mpt", "MPT 7B and 30B", mpt.ARCHITECTURES, mpt.decoder_config, mpt.NAMES),
)


def family_of(hf_config: HFConfig) -> Family:
    """The family that serves a ``config.json``; ``UnsupportedModelError`` names the nearest ones otherwise."""
    architectures = hf_config.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise UnsupportedModelError(f"the model's config has architectures={architectures!r}; a list of names is "
                                    "needed")
    for family in FAMILIES:
        if any(architecture in family.architectures for architecture in architectures):
            _refuse_quantized(hf_config)
            return family
    known = [architecture for family in FAMILIES for architecture in family.architectures]
    if not architectures:
        raise UnsupportedModelError(f"the model's config names no architectures; supported: {', '.join(known)}")
    near = difflib.get_close_matches(architectures[0], known, n=3, cutoff=0.5) or known
    raise UnsupportedModelError(
        f"architecture {architectures[0]!r} is not supported; the nearest that are: {', '.join(near)}"
    )


def family_named(name: str) -> Family | None:
    """The family of a ``DecoderConfig``, by its ``family``."""
    return next((family for family in FAMILIES if family.name == name), None)


def _refuse_quantized(hf_config: HFConfig) -> None:
    """Quantized tensors have other names, and some the same names and other meanings. Sources of those that can be read
    show the config from before (``jaxllm.weights.compressed_tensors``)."""
    quantization = hf_config.get("quantization_config") or hf_config.get("compression_config")
    if quantization:
        method = quantization.get("quant_method", "?") if isinstance(quantization, Mapping) else quantization
        raise UnsupportedModelError(f"the model's config says that it is quantized (quant_method={method!r}), which is "
                                    "not supported: compressed-tensors' int8 of weights, fp8 in blocks, mxfp4 and "
                                    ".gguf files are. "
                                    "Give the checkpoint that it was made from")
