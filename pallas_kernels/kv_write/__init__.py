"""Writing a step's keys and values into the paged KV cache."""

from pallas_kernels.kv_write.api import kv_write

__all__ = ["kv_write"]
