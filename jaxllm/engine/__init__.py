"""The host side of the engine: requests, paged memory, the scheduler. No JAX in this folder but for ``core``."""
