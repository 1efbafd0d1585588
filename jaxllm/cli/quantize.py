"""``jaxllm quantize``: a model anew, its matrices in another type."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jaxllm.cli import console
from jaxllm.cli.options import Debug, Quiet, format_bytes


def quantize(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", show_default=False, help="Hub id, folder, .gguf file or packaged name.")],
    target: Annotated[Path, typer.Argument(
        metavar="OUT", show_default=False, help="The folder to write for int8, else the .gguf file.")],
    kind: Annotated[str, typer.Option(
        "--to", show_default=False,
        help="Type of the matrices: int8, or of a .gguf file's Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, F16 or BF16.")],
    revision: Annotated[str | None, typer.Option(
        "--revision", show_default=False, help="Branch, tag or commit of a hub model.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it is there.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a model with its matrices in another type, its configuration and tokenizer beside them.

    From the least quantized checkpoint that there is: what was lost before does not come back. int8 is a folder in the
    compressed-tensors format, which vLLM and transformers read as well; jaxllm computes with it as with --quantization
    int8 of the model that it was made from. Others are .gguf files, whose Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and Q4_K
    --quantization gguf computes with. OUT is there when it is complete, or not at all.
    """
    console.set_up(quiet=quiet, debug=debug)
    from tqdm import tqdm

    from jaxllm.quantization import quantize
    from jaxllm.weights import resolve

    source = resolve(model, revision)
    total = sum(tensor.nbytes for tensor in source.tensors.values())
    with tqdm(total=total, unit="B", unit_scale=True, desc="quantizing", disable=quiet, leave=False) as bar:
        found = quantize(source, target, kind, overwrite=overwrite, progress=bar.update)
    console.note(f"{target}: {found.changed} matrices in {found.kind}, {found.kept} tensors as they were, "
                 f"{format_bytes(found.bytes_before)} before, {format_bytes(found.bytes_after)} now")
