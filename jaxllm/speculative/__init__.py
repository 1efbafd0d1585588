"""Guessing tokens ahead, so that one step computes several: exact, whatever the guesses."""

from jaxllm.speculative.config import SpeculativeConfig, read_speculative_config

__all__ = ["SpeculativeConfig", "read_speculative_config"]
