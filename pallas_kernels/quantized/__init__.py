"""Products with weights that stay quantized in memory."""

from pallas_kernels.quantized.api import dequantize, quantized_gated_matmul, quantized_matmul
from pallas_kernels.quantized.formats import FORMATS, ROUNDING, Format
from pallas_kernels.quantized.grouped import quantized_grouped_matmul

__all__ = [
    "FORMATS", "ROUNDING", "Format", "dequantize", "quantized_gated_matmul", "quantized_grouped_matmul",
    "quantized_matmul"]
