"""Executables, kept between runs so that a second start compiles nothing."""

from jaxllm.program_cache.trust import trust_sources

__all__ = ["trust_sources"]
