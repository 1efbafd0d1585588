"""The gated product of SwiGLU."""

from pallas_kernels.swiglu.api import swiglu

__all__ = ["swiglu"]
