"""The command line: one program, ``jaxllm``."""

from jaxllm.cli.app import main

__all__ = ["main"]
