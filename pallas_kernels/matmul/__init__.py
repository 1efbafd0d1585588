"""Products of activations with a weight matrix."""

from pallas_kernels.matmul.api import matmul

__all__ = ["matmul"]
