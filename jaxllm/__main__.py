"""``python -m jaxllm``: the program ``jaxllm``, where its script is not on the path."""

from __future__ import annotations

from jaxllm.cli import main

if __name__ == "__main__":
    main()
