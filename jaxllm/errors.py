"""What can go wrong, as types a caller can catch.

Every error that a user's input causes is a ``ValueError``: it names the parameter, the value received and what is
allowed; where a resource is too small, the number to change.
"""


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
        super().__init__(f"{parameter}={shown} is not allowed: {allowed}")


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
