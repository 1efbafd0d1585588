"""jaxllm: LLM inference in JAX.

The public names are here; heavy modules load when a name that needs them is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from jaxllm.beam_search import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
from jaxllm.errors import (
    CapacityError,
    CheckpointError,
    EngineError,
    JaxLLMError,
    ModelNotFoundError,
    ParameterError,
    RequestError,
    UnsupportedModelError,
)
from jaxllm.outputs import CompletionOutput, Logprob, OutputError, RequestMetrics, RequestOutput
from jaxllm.ranking import best_of
from jaxllm.sampling_params import SamplingParams
from jaxllm.structured.params import StructuredOutputsParams

if TYPE_CHECKING:
    from jaxllm.conversion import Converted, convert
    from jaxllm.engine.core import Engine
    from jaxllm.engine.stats import EngineStats
    from jaxllm.llm import LLM
    from jaxllm.planning import MeshSearch, Plan, plan, search_mesh
    from jaxllm.pooling import EmbeddingRequestOutput, RewardRequestOutput
    from jaxllm.quantization import Quantized, quantize
    from jaxllm.scoring import Score

__version__ = "0.1.0"

_LAZY = {
    "LLM": "jaxllm.llm",
    "Converted": "jaxllm.conversion",
    "EmbeddingRequestOutput": "jaxllm.pooling",
    "Engine": "jaxllm.engine.core",
    "EngineStats": "jaxllm.engine.stats",
    "MeshSearch": "jaxllm.planning",
    "Plan": "jaxllm.planning",
    "Quantized": "jaxllm.quantization",
    "RewardRequestOutput": "jaxllm.pooling",
    "Score": "jaxllm.scoring",
    "convert": "jaxllm.conversion",
    "plan": "jaxllm.planning",
    "quantize": "jaxllm.quantization",
    "search_mesh": "jaxllm.planning",
}

__all__ = [
    "LLM",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CapacityError",
    "CheckpointError",
    "CompletionOutput",
    "Converted",
    "EmbeddingRequestOutput",
    "Engine",
    "EngineError",
    "EngineStats",
    "JaxLLMError",
    "Logprob",
    "MeshSearch",
    "ModelNotFoundError",
    "OutputError",
    "ParameterError",
    "Plan",
    "Quantized",
    "RequestError",
    "RequestMetrics",
    "RequestOutput",
    "RewardRequestOutput",
    "SamplingParams",
    "Score",
    "StructuredOutputsParams",
    "UnsupportedModelError",
    "best_of",
    "convert",
    "plan",
    "quantize",
    "search_mesh",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
