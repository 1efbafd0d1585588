"""``jaxllm convert``: a model as a folder of Orbax or of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jaxllm.cli import console
from jaxllm.cli.options import Debug, Quiet, format_bytes


def convert(
    model: Annotated[str, typer.Argument(
        metavar="MODEL", show_default=False, help="Hub id, folder, .gguf file or packaged name.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", show_default=False, help="The folder to write.")],
    to: Annotated[str, typer.Option("--to", help="orbax, or safetensors: a folder of Hugging Face.")] = "orbax",
    dtype: Annotated[str, typer.Option(
        "--dtype", help="stored (as MODEL has it, float32 where it is quantized), bfloat16, float16 or float32.",
    )] = "stored",
    revision: Annotated[str | None, typer.Option(
        "--revision", show_default=False, help="Branch, tag or commit of a hub model.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it is there.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a model as a folder of Orbax or of Hugging Face, its configuration and tokenizer beside the parameters.

    Of Orbax, JAX's training code restores OUT/params, a tree of arrays, and the extra jaxllm[orbax] is needed; a folder
    of Hugging Face is what transformers loads. jaxllm takes OUT wherever it takes a model. With --dtype stored no
    number changes. OUT is there when it is complete, or not at all.
    """
    console.set_up(quiet=quiet, debug=debug)
    from jaxllm.conversion import convert as write

    found = write(model, target, dtype=dtype, revision=revision, overwrite=overwrite, to=to)
    console.note(f"{target}: {found.arrays} arrays in {found.dtype}, {format_bytes(found.nbytes)}")
