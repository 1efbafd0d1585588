"""Writing a step's keys and values into the paged KV cache."""

from pallas_kernels.kv_write.api import kv_write
from pallas_kernels.kv_write.xla import write_pool

__all__ = ["kv_write", "write_pool"]
