"""``MoEConfig``: the mixture-of-experts layers of a decoder."""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.rope import require_positive

Scores = Literal["softmax", "sparsemixer"]


@dataclasses.dataclass(frozen=True)
class MoEConfig:
    """Layers whose MLP is several experts, each a gated MLP, of which every token takes a few (Shazeer et al. 2017).

    num_experts, experts_per_token: how many there are, and how many a token takes. No token is ever dropped.
    expert_size: an expert's feed-forward width.
    dense_layers: the layers that have one MLP instead.
    scores: what experts' logits become. "softmax": their softmax, and the largest are taken. "sparsemixer": Phi-MoE's
        choice of two, one after the other, each with its softmax over those that come near it (Liu et al. 2023,
        Sparse Backpropagation for MoE Training, section 3; without its noise).
    normalize: whether the taken experts' scores are divided by their sum.
    nearness: of "sparsemixer": twice the part of a logit by which others may be away from the largest.
    shared_size: width of an MLP that every token takes beside its experts; ``None`` if there is none. shared_gate:
        whether that is multiplied by the sigmoid of a product with one row.
    """

    num_experts: int
    experts_per_token: int
    expert_size: int
    dense_layers: tuple[int, ...] = ()
    scores: Scores = "softmax"
    normalize: bool = False
    nearness: float = 0.01
    shared_size: int | None = None
    shared_gate: bool = False

    def __post_init__(self) -> None:
        for name in ("num_experts", "experts_per_token", "expert_size", "shared_size"):
            value = getattr(self, name)
            if name == "shared_size" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise UnsupportedModelError(f"the model's config has {name}={value!r} of its experts; a positive "
                                            "integer is needed")
        if self.experts_per_token > self.num_experts:
            raise UnsupportedModelError(f"the model's config has experts_per_token={self.experts_per_token}; at most "
                                        f"num_experts={self.num_experts} is needed")
        if self.nearness != 0:
            require_positive("nearness of experts", self.nearness)
        if self.scores == "sparsemixer" and self.experts_per_token != 2:
            raise UnsupportedModelError(f"the model's config has experts_per_token={self.experts_per_token}; "
                                        "sparsemixer takes 2")
