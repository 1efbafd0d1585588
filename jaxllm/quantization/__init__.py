"""Writing quantized checkpoints."""

from jaxllm.quantization.api import KINDS, quantize
from jaxllm.quantization.result import Quantized

__all__ = ["KINDS", "Quantized", "quantize"]
