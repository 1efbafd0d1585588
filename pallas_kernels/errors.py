"""What is wrong with a choice of kernels."""

from __future__ import annotations


class ChoiceError(ValueError):
    """A kernel, library or instruction set that was asked for, by argument or environment, cannot be had."""
