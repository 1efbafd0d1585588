"""``FirstStep``: what an engine will be asked first, so that it can be compiled while the weights load."""

from __future__ import annotations

import dataclasses

from jaxllm.checks import check_integer
from jaxllm.errors import ParameterError
from jaxllm.runner.buckets import bucket_for
from jaxllm.runner.keys import Key
from jaxllm.runner.programs import Programs
from jaxllm.sampling import needs_state, variant_of
from jaxllm.sampling_params import SamplingParams


@dataclasses.dataclass(frozen=True)
class FirstStep:
    """What the first step of an engine is expected to compute: how many prompt tokens, sampled how."""

    num_tokens: int = 32
    params: SamplingParams = dataclasses.field(default_factory=lambda: SamplingParams(temperature=0.0))

    def __post_init__(self) -> None:
        check_integer("first_step.num_tokens", self.num_tokens, 1)
        if not isinstance(self.params, SamplingParams):
            raise ParameterError("first_step.params", self.params, "a SamplingParams")

    @classmethod
    def given(cls, step: FirstStep | None) -> FirstStep:
        """What a caller has given, or the default; ``ParameterError`` if it is something else."""
        if step is not None and not isinstance(step, FirstStep):
            raise ParameterError("first_step", step, "a FirstStep or None")
        return step or cls()

    def keys(self, programs: Programs) -> list[Key]:
        """The programs that it needs: for its cache, its prompt's tokens, its sampler, and a decode after it."""
        smallest, largest = programs.token_buckets[0], programs.token_buckets[-1]
        tokens = bucket_for(programs.token_buckets, min(self.num_tokens, largest))
        keys = [*programs.forward_keys(smallest), *programs.forward_keys(tokens),
                Key("sample", programs.row_buckets[0], variant_of(self.params)), Key("update_table"),
                Key("allocate_pool")]
        if self.num_tokens > largest:
            keys += programs.fill_keys()
        if needs_state(self.params):
            keys += [Key("empty_state"), Key("set_sampling_slot")]
        return list(dict.fromkeys(keys))
