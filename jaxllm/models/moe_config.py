"""``MoEConfig``: the mixture-of-experts layers of a decoder."""

from __future__ import annotations

import dataclasses
from typing import Literal

from jaxllm.errors import UnsupportedModelError
from jaxllm.models.rope import require_positive

Scores = Literal["softmax", "sigmoid", "sparsemixer"]


@dataclasses.dataclass(frozen=True)
class MoEConfig:
    """Layers whose MLP is several experts, each a gated MLP, of which every token takes a few (Shazeer et al. 2017).

    num_experts, experts_per_token: how many there are, and how many a token takes. No token is ever dropped.
    expert_size: an expert's feed-forward width.
    dense_layers: the layers that have one MLP instead.
    scores: what experts' logits become. "softmax", "sigmoid": that, and the largest are taken. "sparsemixer": Phi-MoE's
        choice of two, one after the other, each with its softmax over those that come near it (Liu et al. 2023,
        Sparse Backpropagation for MoE Training, section 3; without its noise).
    normalize: whether the taken experts' scores are divided by their sum. scale: factor of them, after that.
    correction: whether a number of each expert's is added to its score where the largest are looked for, and there
        alone (Wang et al. 2024, Auxiliary-Loss-Free Load Balancing).
    groups, taken_groups: experts in a row form so many groups, and those of the best few alone are taken. group_score:
        of a group, its largest score, or the sum of its two largest.
    nearness: of "sparsemixer": twice the part of a logit by which others may be away from the largest.
    bias: whether the router and the experts' matrices have biases.
    gate_limit: of the gates, from above, and of what they are multiplied by, from both sides; 1 is added to that, and
        the gate is ``g * sigmoid(gate_slope * g)``. ``None`` where gates are as in MLPs.
    weigh_inputs: whether a token's experts get it times their weights, rather than their results being multiplied.
    shared_size: width of an MLP that every token takes beside its experts; ``None`` if there is none. shared_gate:
        whether that is multiplied by the sigmoid of a product with one row.
    """

    num_experts: int
    experts_per_token: int
    expert_size: int
    dense_layers: tuple[int, ...] = ()
    scores: Scores = "softmax"
    normalize: bool = False
    scale: float = 1.0
    correction: bool = False
    groups: int = 1
    taken_groups: int = 1
    group_score: Literal["largest", "two largest"] = "largest"
    bias: bool = False
    gate_limit: float | None = None
    gate_slope: float = 1.0
    weigh_inputs: bool = False
    nearness: float = 0.01
    shared_size: int | None = None
    shared_gate: bool = False

    def __post_init__(self) -> None:
        for name in ("num_experts", "experts_per_token", "expert_size", "shared_size", "groups", "taken_groups"):
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
        require_positive("the scale of its experts' weights", self.scale)
        require_positive("the slope of its experts' gates", self.gate_slope)
        if self.gate_limit is not None:
            require_positive("the limit of its experts' gates", self.gate_limit)
        self._check_groups()
        if self.scores == "sparsemixer" and self.experts_per_token != 2:
            raise UnsupportedModelError(f"the model's config has experts_per_token={self.experts_per_token}; "
                                        "sparsemixer takes 2")

    def _check_groups(self) -> None:
        size = self.num_experts // self.groups
        least = 2 if self.groups > 1 and self.group_score == "two largest" else 1
        if self.num_experts % self.groups or size < least:
            raise UnsupportedModelError(f"the model's config has {self.groups} groups of {self.num_experts} experts; "
                                        f"equal ones of {least} or more are needed")
        if self.taken_groups > self.groups or self.taken_groups * size < self.experts_per_token:
            raise UnsupportedModelError(f"the model's config takes experts of {self.taken_groups} groups of "
                                        f"{self.groups}; at most all of them, with {self.experts_per_token} experts or "
                                        "more, are needed")
