"""Root-mean-square normalization."""

from pallas_kernels.rms_norm.api import rms_norm

__all__ = ["rms_norm"]
