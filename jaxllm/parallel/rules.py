"""Which part of each parameter, cache and width belongs to which device of a mesh's axis ``tensor``."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

from jaxllm.errors import ParameterError
from jaxllm.models.config import DecoderConfig
from jaxllm.models.exchange import Exchange
from jaxllm.models.shard import Shard
from jaxllm.parallel.mesh import DATA, TENSOR
from jaxllm.weights.splits import Ranges


def local_config(config: DecoderConfig, size: int, *, by_expert: bool = False) -> DecoderConfig:
    """The config of what one of ``size`` devices computes.

    Attention heads, feed-forward widths and the vocabulary, after it was padded, are cut into equal parts. So are kv
    heads where there are enough; where there are fewer than devices, each is on as many devices in a row as there are
    devices per kv head, which are the ones that have its queries. by_expert: of experts, each device has some whole
    ones in place of a part of each one's width.

    Raises ``ParameterError`` with the sizes that are possible where these do not divide.
    """
    check_size(config, size, by_expert=by_expert)
    kv_heads = config.num_kv_heads
    copies = 1 if config.latent is not None else max(1, size // kv_heads)
    moe = config.moe
    if moe is not None:
        shared = None if moe.shared_size is None else moe.shared_size // size
        moe = dataclasses.replace(
            moe, expert_size=moe.expert_size if by_expert else moe.expert_size // size, shared_size=shared)
    return dataclasses.replace(
        config,
        vocab_size=-(-config.vocab_size // size),
        num_heads=config.num_heads // size,
        num_kv_heads=kv_heads if config.latent is not None else max(1, kv_heads // size),
        intermediate_size=config.intermediate_size // size if _has_dense(config) else config.intermediate_size,
        moe=moe,
        shard=Shard(TENSOR, size, by_expert, copies),
    )


def exchange_config(config: DecoderConfig, data: int, tensor: int, *, ragged: bool = False) -> DecoderConfig:
    """The config of what one of ``data * tensor`` devices computes, whole experts being dealt out over all of them and
    all else, as ``local_config`` says, over ``tensor``. ragged: as in ``Exchange``.

    Raises ``ParameterError`` where a model has no experts, or none for each device.
    """
    count = 0 if config.moe is None else config.moe.num_experts
    if not count or count % (data * tensor):
        allowed = [str(size) for size in range(1, count // tensor + 1) if count % (size * tensor) == 0]
        raise ParameterError("data_parallel_size", data, f"one of {', '.join(allowed)} with enable_expert_parallel and "
                             f"tensor_parallel_size={tensor}: the model has {count} experts" if allowed else
                             f"1 with enable_expert_parallel: the model has {count} experts for {tensor} devices")
    local = config if tensor == 1 else local_config(config, tensor, by_expert=True)
    return dataclasses.replace(local, exchange=Exchange(DATA, TENSOR, data, tensor, ragged))


def check_size(config: DecoderConfig, size: int, *, by_expert: bool = False) -> None:
    """``ParameterError`` where a model cannot be shared among ``size`` devices, with what is allowed."""
    problem = _obstacle(config, size, by_expert)
    if problem is None:
        return
    allowed = [other for other in range(1, config.num_heads + 1) if _obstacle(config, other, by_expert) is None]
    raise ParameterError("tensor_parallel_size", size, f"one of {', '.join(map(str, allowed))} for this model: "
                         f"{problem}")


def _obstacle(config: DecoderConfig, size: int, by_expert: bool) -> str | None:
    """Why it cannot."""
    if size == 1:
        return None
    widths = {"attention heads": config.num_heads}
    if _has_dense(config):
        widths["columns of its feed-forward layers"] = config.intermediate_size
    if config.moe is not None and by_expert:
        widths["experts"] = config.moe.num_experts
    elif config.moe is not None:
        widths["columns of its experts' feed-forward layers (enable_expert_parallel=True would deal out whole experts)"
               ] = config.moe.expert_size
    if config.moe is not None and config.moe.shared_size is not None:
        widths["columns of the feed-forward layer that all tokens share"] = config.moe.shared_size
    for name, width in widths.items():
        if width % size:
            return f"its {width} {name} do not divide by {size}"
    if config.latent is None and config.num_kv_heads % size and size % config.num_kv_heads:
        return f"its {config.num_kv_heads} kv heads neither divide by {size} nor into it"
    if config.qk_norm == "all" and config.norm == "layer":
        return "layer normalization over all heads at once needs them on one device"
    return None


def _has_dense(config: DecoderConfig) -> bool:
    """Whether there are MLPs without experts."""
    return config.moe is None or bool(config.moe.dense_layers)


@dataclasses.dataclass(frozen=True)
class AxisRules:
    """How the logical axes of a model's parameters are cut.

    whole: the config of the whole model. local: of one device's part (``local_config``).
    """

    whole: DecoderConfig
    local: DecoderConfig

    @property
    def shard(self) -> Shard:
        """Of the local config."""
        assert self.local.shard is not None
        return self.local.shard

    def ranges(self, axis: str | None, length: int) -> list[Ranges] | None:
        """What each device has of an axis of this length; ``None`` where each has all of it."""
        rule = self._rules.get(axis or "")
        return None if rule is None else rule(length)

    @property
    def _rules(self) -> Mapping[str, Callable[[int], list[Ranges] | None]]:
        heads, kv_heads, size = self.whole.num_heads, self.whole.num_kv_heads, self.whole.head_dim
        experts = 0 if self.whole.moe is None else self.whole.moe.num_experts
        dealt = self.shard.by_expert
        return {
            "heads": self._equal,
            "kv_heads": lambda length: self._kv(0, length),
            "qkv": lambda length: _joined(self._equal(heads * size), self._kv(heads * size, kv_heads * size),
                                          self._kv((heads + kv_heads) * size, kv_heads * size)),
            "mlp": self._equal,
            "gate_up": lambda length: self._in_runs(length, 2),
            "vocab": lambda length: self._equal(self.shard.size * self.local.vocab_size),
            "expert_gate_up": lambda length: self._equal(length) if dealt else self._in_runs(length, 2 * experts),
            "expert_down": lambda length: self._equal(length) if dealt else None,
            "expert_mlp": lambda length: None if dealt else self._equal(length),
        }

    def _equal(self, length: int) -> list[Ranges]:
        part = length // self.shard.size
        return [((device * part, (device + 1) * part),) for device in range(self.shard.size)]

    def _in_runs(self, length: int, runs: int) -> list[Ranges]:
        """Of each of several runs an equal part."""
        run = length // runs
        parts = self._equal(run)
        return [tuple((number * run + start, number * run + stop) for number in range(runs) for start, stop in ranges)
                for ranges in parts]

    def _kv(self, first: int, length: int) -> list[Ranges]:
        """Kv heads from ``first`` on, each on ``kv_copies`` devices."""
        copies = self.shard.kv_copies
        part = length * copies // self.shard.size
        return [((first + device // copies * part, first + (device // copies + 1) * part),)
                for device in range(self.shard.size)]


def _joined(*parts: Sequence[Ranges]) -> list[Ranges]:
    return [tuple(itertools.chain.from_iterable(of_device)) for of_device in zip(*parts, strict=True)]
