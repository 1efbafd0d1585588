"""The command line: one program, ``jaxllm``."""

from jaxllm.cli.app import app, main

__all__ = ["app", "main"]
