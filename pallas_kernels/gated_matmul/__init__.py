"""Gated products: SwiGLU and GeGLU."""

from pallas_kernels.gated_matmul.activations import ACTIVATIONS, Activation, gate
from pallas_kernels.gated_matmul.api import gated_matmul

__all__ = ["ACTIVATIONS", "Activation", "gate", "gated_matmul"]
