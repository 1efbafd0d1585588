"""The product in plain XLA."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def matmul_xla(x: Float[Array, "T I"], weight: Float[Array, "O I"], out_dtype: np.dtype) -> Array:
    """One dot."""
    return jnp.einsum("ti,oi->to", x, weight, preferred_element_type=jnp.float32).astype(out_dtype)
