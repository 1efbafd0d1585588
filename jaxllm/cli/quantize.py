"""``jaxllm quantize``: a .gguf file anew, its matrices in another type."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jaxllm.cli import console
from jaxllm.cli.options import Debug, Quiet, format_bytes


def quantize(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", show_default=False, help="A .gguf file, a packaged name, or ORG/NAME:FILE of the hub.")],
    target: Annotated[Path, typer.Argument(
        metavar="FILE", show_default=False, dir_okay=False, help="The .gguf file to write.")],
    kind: Annotated[str, typer.Option(
        "--to", show_default=False, help="Type of the matrices: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, F16 or BF16.")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE if it is there.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a .gguf file with its matrices in another type, and everything else as it is.

    From the least quantized file that there is: what was lost before does not come back. --quantization gguf then
    computes with the blocks of Q4_0, Q4_1 and Q8_0. FILE is there when it is complete, or not at all.
    """
    console.set_up(quiet=quiet, debug=debug)
    from tqdm import tqdm

    from jaxllm.errors import ParameterError
    from jaxllm.weights.gguf import GGUFSource
    from jaxllm.weights.locate import resolve
    from jaxllm.weights.requantize import requantize

    source = resolve(model)
    if not isinstance(source, GGUFSource):
        raise ParameterError("MODEL", model, 'a .gguf file; other checkpoints are quantized while they are loaded, by '
                                             "--quantization int8")
    if target.suffix.lower() != ".gguf":
        raise ParameterError("FILE", str(target), "a name that ends in .gguf")
    total = sum(tensor.nbytes for tensor in source.tensors.values())
    with tqdm(total=total, unit="B", unit_scale=True, desc="quantizing", disable=quiet, leave=False) as bar:
        found = requantize(source, target, kind.upper(), overwrite=overwrite, progress=bar.update)
    console.note(f"{target}: {found.changed} matrices in {kind.upper()}, {found.kept} tensors as they were, "
                 f"{format_bytes(found.bytes_before)} before, {format_bytes(found.bytes_after)} now")
