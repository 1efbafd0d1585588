"""What can go wrong, as types a caller can catch.

Every error that a user's input causes is a ``ValueError``: it names the parameter, the value received and what is
allowed; where a resource is too small, the number to change.
"""


from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxllm.outputs import RequestOutput


class JaxLLMError(ValueError):
    """Base of the errors that jaxllm raises for bad input or impossible requests."""


class ParameterError(JaxLLMError):
    """A parameter has a value outside what is allowed.

    ``parameter`` holds its name, so that a per-request error can say which one.
    """

    def __init__(self, parameter: str, value: object, allowed: str) -> None:
        self.parameter = parameter
        self.value = value
        self.allowed = allowed
        shown = repr(value)
        if len(shown) > 200:
            shown = shown[:200] + "..."
        self._message = f"{parameter}={shown} is not allowed: {allowed}"
        super().__init__(parameter, value, allowed)  # what copying and pickling make it anew from

    def __str__(self) -> str:
        return self._message


class ModelNotFoundError(JaxLLMError):
    """No model at the given hub id, folder, file or packaged name."""


class CheckpointError(JaxLLMError):
    """A checkpoint exists but cannot be read: truncated, a shard missing, a tensor missing or of the wrong shape."""


class UnsupportedModelError(JaxLLMError):
    """The checkpoint is readable, but its architecture, tensor type or tokenizer is not supported."""


class CapacityError(JaxLLMError):
    """The engine cannot fit what was asked into memory; the message names the number to change."""


class EngineError(RuntimeError):
    """The engine failed while running a step; the requests of that step carry it, the others go on."""


class DistributedError(RuntimeError):
    """The processes of a job cannot work together: one started too late, cannot be reached, or has other settings."""


class RequestError(RuntimeError):
    """A request failed while it ran, and the call was made with ``raise_on_error``.

    output: what the request had come to, its ``error`` included.
    """

    def __init__(self, output: RequestOutput) -> None:
        self.output = output
        super().__init__(output)

    def __str__(self) -> str:
        error = self.output.error
        reason = "it failed" if error is None else f"{error.type}: {error.message}"
        return f"{self.output.request_id}: {reason}"
