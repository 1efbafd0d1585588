"""Rotary embedding and KV write in one."""

from pallas_kernels.rope_kv_write.api import rope_kv_write
from pallas_kernels.rope_kv_write.xla import rotate

__all__ = ["rope_kv_write", "rotate"]
