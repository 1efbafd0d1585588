"""``LockstepRunner``: one step of all replicas at once, whose layers are one program as their experts are spread."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from jaxllm.engine.joint_plan import JointPlan
from jaxllm.engine.plan import StepDraft, StepPlan
from jaxllm.kv_cache.pool import KVPool
from jaxllm.models.model import Params
from jaxllm.parallel.partition import Partition, PlacedParams
from jaxllm.parallel.spread import SpreadPartition
from jaxllm.runner.batch import StepBatch
from jaxllm.runner.keys import Key
from jaxllm.runner.programs import Programs
from jaxllm.runner.runner import Runner, StepResult
from jaxllm.runner.signatures import Signatures
from jaxllm.runner.weights import Weights


class ReplicaPrograms(Programs):
    """A replica's own programs: all but its layers, which it computes together with the others."""

    @property
    def kinds(self) -> list[int]:
        """None."""
        return []


class JointPrograms(Programs):
    """The layers of all replicas: each one's arrays are a part of the arguments, along their first axis.

    replica: the programs of one.
    """

    def __init__(self, replica: Programs, layers_per_program: int) -> None:
        partition = replica.partition.together
        assert isinstance(partition, SpreadPartition)
        super().__init__(replica.model, replica.spec, replica.config, layers_per_program, replica.cache, partition)
        self._replicas = replica.config.data_parallel_size
        self._signatures = _JointSignatures(self._functions, partition, replica=Signatures(
            self._functions, replica.partition))

    def all_keys(self) -> list[Key]:
        """Of each kind of layers, and for each bucket."""
        return [key for tokens in self.token_buckets for key in self.forward_keys(tokens)]

    def forward_keys(self, tokens: int) -> list[Key]:
        """What a step needs for a token bucket, the largest of its replicas'."""
        return [Key("layers", tokens, kind) for kind in self.kinds]

    def _bucket(self, x: Array) -> int:
        return x.shape[0] // self._replicas


@dataclasses.dataclass(frozen=True)
class _JointSignatures(Signatures):
    """replica: the arguments of one."""

    replica: Signatures | None = None

    def of(self, key: Key) -> tuple[Any, ...]:
        assert self.replica is not None
        assert isinstance(self.partition, SpreadPartition)
        partition, replicas = self.partition, self.functions.config.data_parallel_size
        chunk = next(chunk for chunk in self.functions.chunks if chunk.kind == key.kind)
        layers = partition.abstract_params["layers"]
        params = [jax.tree.leaves(layers[layer]) for layer in range(chunk.layers.start, chunk.layers.stop)]
        return params, *jax.tree.map(lambda like: jax.ShapeDtypeStruct(
            (replicas * like.shape[0], *like.shape[1:]), like.dtype,
            sharding=partition.joined_sharding(like.sharding)), self.replica.of(key)[1:])

    def _results(self, key: Key) -> Any:
        _, x, _, cache = self.of(key)
        return jax.tree.map(lambda like: like.sharding.spec, (x, cache))


class ReplicaWeights(Weights):
    """What one replica sees of parameters that all of them have together; the first speaks for them."""

    def __init__(self, joint: Weights, replica: Partition, *, is_first: bool) -> None:
        self._joint, self._replica, self._is_first = joint, replica, is_first
        self._seen: tuple[Any, Params, Params] | None = None

    @property
    def present(self) -> bool:  # type: ignore[override]
        """As ``Weights`` has it."""
        return self._joint.present

    @property
    def layers(self) -> Any:  # type: ignore[override]
        """As ``Weights`` has it: over the devices of all replicas."""
        return self._joint.layers

    @property
    def outer(self) -> Params:  # type: ignore[override]
        """As ``Weights`` has it, on the replica's devices."""
        return self._own()[0]

    @property
    def head(self) -> Params:  # type: ignore[override]
        """As ``Weights`` has it, on the replica's devices."""
        return self._own()[1]

    def _own(self) -> tuple[Params, Params]:
        joint = self._joint
        if self._seen is None or self._seen[0] is not joint.outer:
            self._seen = joint.outer, self._part_of(joint.outer), self._part_of(joint.head)
        return self._seen[1:]

    def _part_of(self, params: Params) -> Params:
        together = self._replica.together
        assert isinstance(together, SpreadPartition)
        return jax.tree.map(lambda leaf: together.part(leaf, self._replica, stacked=False), params)

    @property
    def params(self) -> Params:
        """As ``Weights`` has it."""
        return self._joint.params

    def replace(self, params: Params | PlacedParams) -> None:
        """As ``Weights`` does, for all replicas."""
        self._joint.replace(params)

    def take_over(self, other: Weights) -> None:
        """They are the same."""

    def put_aside(self) -> None:
        """As ``Weights`` does, for all replicas when the first is told to."""
        self._once(self._joint.put_aside)

    def drop(self) -> None:
        """As ``Weights`` does, for all replicas when the first is told to."""
        self._once(self._joint.drop)

    def take_back(self) -> None:
        """As ``Weights`` does, for all replicas when the first is told to."""
        self._once(self._joint.take_back)

    def _once(self, act: Callable[[], None]) -> None:
        self._seen = None
        if self._is_first:
            act()


class _Caches:
    """The caches of all replicas: one of each, or all in one, as it was last used."""

    def __init__(self, together: SpreadPartition, replicas: Sequence[Partition]) -> None:
        self._together, self._replicas = together, replicas
        self._parts: list[KVPool] | None = [[] for _ in replicas]
        self._joint: KVPool = []

    def part(self, number: int) -> KVPool:
        return self._as_parts()[number]

    def set_part(self, number: int, cache: KVPool) -> None:
        self._as_parts()[number] = cache
        self._joint = []

    @property
    def joint(self) -> KVPool:
        if not self._joint:
            assert self._parts is not None
            self._joint = jax.tree.map(lambda *arrays: self._together.joined(arrays), *self._parts)
        return self._joint

    @joint.setter
    def joint(self, cache: KVPool) -> None:
        self._joint, self._parts = cache, None

    def _as_parts(self) -> list[KVPool]:
        if self._parts is None:
            self._parts = [jax.tree.map(lambda array, own=own: self._together.part(array, own), self._joint)
                           for own in self._replicas]
        return self._parts


class ReplicaRunner(Runner):
    """A replica's part of a step."""

    def __init__(self, programs: Programs, weights: ReplicaWeights, caches: _Caches, number: int) -> None:
        self._caches, self._number = caches, number
        super().__init__(programs, weights)

    @property
    def cache(self) -> KVPool:
        """The replica's own."""
        return self._caches.part(self._number)

    @cache.setter
    def cache(self, cache: KVPool) -> None:
        self._caches.set_part(self._number, cache)

    def begin(self, plan: StepPlan, num_tokens: int) -> tuple[StepBatch, Any, Any, Any]:
        """The batch, and what ``Programs.begin`` gives for the bucket for so many tokens."""
        batch = self._prepare(plan, num_tokens)
        return batch, *self.programs.begin(self.weights.outer, self.table, self.newest, batch)

    def end(self, plan: StepPlan, batch: StepBatch, x: Any, sample_rows: Any) -> StepResult:
        """The step's result. x: what the layers gave."""
        return self._finish(plan, batch, *self.programs.end(self.weights.outer, x, sample_rows))


@dataclasses.dataclass(frozen=True)
class JointResult:
    """The results of a ``JointPlan``, ``None`` for a replica that had nothing to do."""

    results: list[StepResult | None]

    def fetch(self) -> JointResult:
        """Wait for the devices; the same with numpy arrays."""
        return JointResult([None if each is None else each.fetch() for each in self.results])


class LockstepRunner:
    """Runs the plans of all replicas together. Each begins by itself, all pad to the bucket of the one with the most
    tokens and compute the layers in one program, in which tokens are sent to their experts' devices, and each samples
    by itself. A replica without a plan takes part with no tokens.

    programs: of each replica. params: the model's, or what ``load_placed`` gives.
    """

    def __init__(self, programs: Sequence[Programs], joint: JointPrograms, params: Params | PlacedParams) -> None:
        together = joint.partition
        assert isinstance(together, SpreadPartition)
        self._together, self.programs = together, joint
        self.weights = Weights(together, params)
        partitions = [each.partition for each in programs]
        self._caches = _Caches(together, partitions)
        weights = [ReplicaWeights(self.weights, own, is_first=number == 0) for number, own in enumerate(partitions)]
        self.replicas = [ReplicaRunner(each, own, self._caches, number)
                         for number, (each, own) in enumerate(zip(programs, weights, strict=True))]

    def dispatch(self, plan: JointPlan) -> JointResult:
        """Start one step; the result's arrays are on the devices and may not be ready yet."""
        most = max(each.num_tokens for each in plan.plans if each is not None)
        begun = [replica.begin(_NOTHING if each is None else each, most)
                 for replica, each in zip(self.replicas, plan.plans, strict=True)]
        x, step = jax.tree.map(lambda *arrays: self._together.joined(arrays), *((x, step) for _, x, step, _ in begun))
        self._caches.joint, x = self.programs.layers(self.weights.layers, x, step, self._caches.joint)
        return JointResult([
            None if each is None else replica.end(each, batch, self._together.part(x, replica.partition), sample_rows)
            for replica, each, (batch, _, _, sample_rows) in zip(self.replicas, plan.plans, begun, strict=True)])

    def sleep(self, level: int) -> None:
        """As ``Runner.sleep``."""
        for replica in self.replicas:
            replica.sleep(level)

    def wake_up(self) -> None:
        """As ``Runner.wake_up``."""
        for replica in self.replicas:
            replica.wake_up()

    def compile_all(self) -> None:
        """Compile every program, so that no step has to wait for one."""
        for programs in (self.programs, *(replica.programs for replica in self.replicas)):
            for key in programs.all_keys():
                programs.compile(key)

    def reset(self) -> None:
        """Fresh device state in all replicas."""
        for replica in self.replicas:
            replica.reset()

    @property
    def intact(self) -> bool:
        """Whether the device state of all replicas survived a failed step."""
        return all(replica.intact for replica in self.replicas)


_NOTHING = StepDraft(0).plan(np.zeros((0, 4), np.int32), *(np.zeros((0, 2), np.int32) for _ in range(3)))
