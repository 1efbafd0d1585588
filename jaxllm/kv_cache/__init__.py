"""The paged cache on the device: what it holds (``spec``), where (``pool``), and the map to it (``block_table``)."""

from jaxllm.kv_cache.block_table import BlockTable
from jaxllm.kv_cache.pool import KVPool, abstract_pool, unfilled_pool
from jaxllm.kv_cache.spec import KVEntry, KVGroup, KVSpec, kv_spec

__all__ = ["BlockTable", "KVEntry", "KVGroup", "KVPool", "KVSpec", "abstract_pool", "kv_spec", "unfilled_pool"]
