"""Rotary settings of a ``config.json``, in either spelling: ``rope_parameters`` (transformers 5) or ``rope_theta`` and
``rope_scaling`` (before)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.families.common import HFConfig, head_dim, required
from jaxllm.models.rope import RopeConfig, require_positive


def rope_config(hf: HFConfig, *, theta: float = 10_000.0, partial: float = 1.0, interleaved: bool = False
                ) -> RopeConfig:
    """theta, partial: the base, and the part of a head's dimensions that is rotated, where the config has none.
    interleaved: of the family."""
    parameters = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        raise UnsupportedModelError(f"the model's config describes rope by {parameters!r}; an object is needed")
    shared: dict[str, Any] = {"theta": parameters.get("rope_theta", hf.get("rope_theta", theta)),
                              "interleaved": interleaved}
    partial = parameters.get("partial_rotary_factor", hf.get("partial_rotary_factor", partial))
    require_positive("partial_rotary_factor", partial)
    if partial != 1:
        shared["rotary_dim"] = int(head_dim(hf) * partial)
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    divisors = hf.get("rope_frequency_divisors")
    if divisors is not None:
        return RopeConfig(**shared, frequency_divisors=_floats(divisors))
    if kind not in _KINDS:
        raise UnsupportedModelError(f"rope_type={kind!r} is not supported; {', '.join(_KINDS)} are")
    return RopeConfig(**shared | _KINDS[kind](parameters, hf))


def _linear(parameters: HFConfig, hf: HFConfig) -> dict[str, Any]:
    return {"kind": "linear", "factor": required(parameters, "factor")}


def _llama3(parameters: HFConfig, hf: HFConfig) -> dict[str, Any]:
    return {
        "kind": "llama3",
        "factor": required(parameters, "factor"),
        "low_freq_factor": required(parameters, "low_freq_factor"),
        "high_freq_factor": required(parameters, "high_freq_factor"),
        "original_max_position": required(parameters, "original_max_position_embeddings"),
    }


def _dynamic(parameters: HFConfig, hf: HFConfig) -> dict[str, Any]:
    """Dynamic NTK scaling changes the base for contexts longer than ``max_position_embeddings``
    (``_compute_dynamic_ntk_parameters`` in transformers), which do not exist here. Hunyuan's ``alpha`` changes it for
    all."""
    require_positive("rope factor", required(parameters, "factor"))
    if parameters.get("alpha") is None:
        return {}
    require_positive("rope alpha", parameters["alpha"])
    size, theta = head_dim(hf), parameters.get("rope_theta", hf.get("rope_theta", 10_000.0))
    require_positive("rope_theta", theta)
    return {"theta": theta * parameters["alpha"] ** (size / (size - 2))}


def _yarn(parameters: HFConfig, hf: HFConfig) -> dict[str, Any]:
    """Peng et al. 2023, YaRN; ``_compute_yarn_parameters`` in transformers."""
    original, factor = _original_and_factor(parameters, hf)
    weights = [parameters.get(name) for name in ("mscale", "mscale_all_dim")]
    if parameters.get("attention_factor") is not None:
        attention = parameters["attention_factor"]
    elif all(weights):
        attention = yarn_scale(factor, weights[0]) / yarn_scale(factor, weights[1])
    else:
        attention = yarn_scale(factor, 1.0)
    return {"kind": "yarn", "factor": factor, "original_max_position": original, "attention_factor": attention,
            "beta_fast": parameters.get("beta_fast") or 32.0, "beta_slow": parameters.get("beta_slow") or 1.0,
            "truncate": bool(parameters.get("truncate", True))}


def yarn_scale(factor: float, weight: Any) -> float:
    """What yarn scales queries and keys by where a context is extended by ``factor``."""
    require_positive("rope mscale", weight)
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1


def _longrope(parameters: HFConfig, hf: HFConfig) -> dict[str, Any]:
    """Ding et al. 2024, LongRoPE; ``_compute_longrope_parameters`` in transformers. Models whose context is longer than
    the original one use the factors for long texts for all, as keys that are cached cannot change theirs."""
    original, factor = _original_and_factor(parameters, hf)
    attention = parameters.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 or original <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    longest = required(hf, "max_position_embeddings")
    require_positive("max_position_embeddings", longest)
    divisors = required(parameters, "long_factor" if longest > original else "short_factor")
    return {"kind": "longrope", "attention_factor": attention, "frequency_divisors": _floats(divisors)}


def _default(parameters: HFConfig, hf: HFConfig) -> dict[str, Any]:
    return {}


_KINDS = {"default": _default, "linear": _linear, "llama3": _llama3, "dynamic": _dynamic, "yarn": _yarn,
          "longrope": _longrope, "su": _longrope}
"""By ``rope_type``; "su" is what Phi-3's first checkpoints call longrope."""


def _original_and_factor(parameters: HFConfig, hf: HFConfig) -> tuple[float, float]:
    """The context that the model was trained with first, and how many times it was extended."""
    name = "original_max_position_embeddings"
    original = parameters.get(name) or hf.get(name) or required(hf, "max_position_embeddings")
    require_positive(f"rope {name}", original)
    factor = parameters.get("factor")
    if factor is None:
        longest = required(hf, "max_position_embeddings")
        require_positive("max_position_embeddings", longest)
        factor = longest / original
    require_positive("rope factor", factor)
    return original, factor


def _floats(values: Any) -> tuple[float, ...]:
    if not isinstance(values, list) or not all(isinstance(value, int | float) for value in values):
        raise UnsupportedModelError(f"the model's config has {values!r:.200} as factors of rope; a list of numbers is "
                                    "needed")
    return tuple(map(float, values))
