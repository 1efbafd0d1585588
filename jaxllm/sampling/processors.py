"""Logits processors: a user's JAX functions, compiled into the sampler, switched on request by request."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxllm.errors import ParameterError
from jaxllm.sampling.rows import SamplingRows
from jaxllm.sampling.state import IN_PROMPT, SamplingState
from jaxllm.sampling_params import PROCESSOR_ARGUMENTS

MAX_PROCESSORS = 31


class LogitsState(NamedTuple):
    """What a logits processor sees of its request, besides the logits.

    arguments: the numbers that the request passed, then zeros.
    num_prompt, num_output: tokens so far. token_ids: prompt and output, -1 beyond.
    output_counts: how often each token occurs in the output. in_prompt: which occur in the prompt.
    """

    arguments: Float[Array, " 8"]
    num_prompt: Int[Array, ""]
    num_output: Int[Array, ""]
    token_ids: Int[Array, " L"]
    output_counts: Int[Array, " V"]
    in_prompt: Bool[Array, " V"]


LogitsProcessor = Callable[[Float[Array, " V"], LogitsState], Float[Array, " V"]]
"""A pure JAX function of float32 logits ``[V]`` and a ``LogitsState``, to logits ``[V]``."""


def check_processors(
    processors: Any, vocab_size: int, max_length: int
) -> tuple[tuple[str, LogitsProcessor], ...]:
    """The processors with their names, each tried on abstract arguments; ``ParameterError`` says which cannot work."""
    allowed = f"a mapping from at most {MAX_PROCESSORS} names to JAX functions (logits, state) -> logits"
    if not isinstance(processors, Mapping) or len(processors) > MAX_PROCESSORS:
        raise ParameterError("logits_processors", processors, allowed)
    arguments = _abstract_arguments(vocab_size, max_length)
    for name, processor in processors.items():
        if not isinstance(name, str) or not callable(processor):
            raise ParameterError("logits_processors", {name: processor}, allowed)
        try:
            result = jax.eval_shape(processor, *arguments)
            jax.eval_shape(jax.vmap(processor), *_of_two_rows(arguments))
        except Exception as error:
            raise ParameterError(f"logits_processors[{name!r}]", processor,
                                 "a function that JAX can trace, also under vmap; it raised "
                                 f"{type(error).__name__}: {error}") from error
        if getattr(result, "shape", None) != (vocab_size,) or not jnp.issubdtype(result.dtype, jnp.floating):
            raise ParameterError(f"logits_processors[{name!r}]", result, f"a result of float32[{vocab_size}]")
    return tuple(processors.items())


def _abstract_arguments(vocab_size: int, max_length: int) -> tuple[jax.ShapeDtypeStruct, LogitsState]:
    def array(dtype: Any, *shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    state = LogitsState(array(jnp.float32, PROCESSOR_ARGUMENTS), array(jnp.int32), array(jnp.int32),
                        array(jnp.int32, max_length), array(jnp.int32, vocab_size), array(jnp.bool_, vocab_size))
    return array(jnp.float32, vocab_size), state


def _of_two_rows(arguments: Any) -> Any:
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct((2, *array.shape), array.dtype), arguments)


def _isolated(processor: LogitsProcessor, state: LogitsState, logits: Float[Array, " V"]) -> Float[Array, " V"]:
    # Apart from its surroundings, so that every program computes the same bits.
    return lax.optimization_barrier(processor(lax.optimization_barrier(logits), state).astype(jnp.float32))


def apply_processors(
    logits: Float[Array, "B V"], rows: SamplingRows, state: SamplingState, processors: Sequence[LogitsProcessor]
) -> Float[Array, "B V"]:
    """Logits after the processors that each row asks for, in the engine's order.

    On the CPU row by row, so that a row costs what it asks for and its bits depend on it alone; elsewhere all rows at
    once.
    """
    if state.history is None or state.arguments is None:
        return logits
    slots = jnp.minimum(rows.slot, state.counts.shape[0] - 1)
    operands = (logits, rows.processors, state.arguments[slots], rows.num_prompt, rows.position - rows.num_prompt,
                state.history[slots], state.counts[slots], (state.flags[slots] & IN_PROMPT) != 0)

    def one_row(row: tuple[Array, ...]) -> Array:
        logits, wanted, arguments, *seen = row
        for number, processor in enumerate(processors):
            process = functools.partial(_isolated, processor, LogitsState(arguments[number], *seen))
            logits = lax.cond((wanted >> number) & 1 != 0, process, lambda x: x, logits)
        return logits

    with jax.named_scope("logits_processors"):
        return lax.platform_dependent(
            *operands, cpu=lambda *x: lax.map(one_row, x), default=lambda *x: jax.vmap(one_row)(x))
