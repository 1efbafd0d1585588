"""Products with one of several weights, by groups of rows: the experts of a mixture."""

from pallas_kernels.grouped_matmul.api import grouped_matmul

__all__ = ["grouped_matmul"]
