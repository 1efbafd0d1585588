"""Generation over Ray Data's data sets: replicas of a model, each in an actor of its own (docs/ray.md).

Ray is an extra, ``jaxllm[ray]``, and is imported when ``generate`` is called.
"""

from jaxllm.ray.dataset import generate
from jaxllm.ray.rows import OUTPUT_COLUMNS, BatchGenerator

__all__ = ["OUTPUT_COLUMNS", "BatchGenerator", "generate"]
