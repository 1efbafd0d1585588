"""Reading what a user types: a message of one or several lines."""

from __future__ import annotations

import contextlib
import sys

PROMPT, CONTINUATION = "> ", ". "
_QUOTES = '"""'


class MessageReader:
    """Reads messages from standard input, with line editing and history on a terminal.

    A line that ends with a backslash goes on in the next; three double quotes begin and end a message of several lines.
    """

    def __init__(self) -> None:
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        if self.interactive:
            with contextlib.suppress(ImportError):  # not on every platform
                import readline  # noqa: F401

    def read(self) -> str:
        """The next message; ``EOFError`` at the end, ``KeyboardInterrupt`` if Ctrl-C was pressed."""
        line = self._line(PROMPT)
        if line.lstrip().startswith(_QUOTES):
            return self._quoted(line.lstrip().removeprefix(_QUOTES))
        lines = [line]
        with contextlib.suppress(EOFError):
            while lines[-1].endswith("\\"):
                lines[-1] = lines[-1][:-1]
                lines.append(self._line(CONTINUATION))
        return "\n".join(lines)

    def _quoted(self, line: str) -> str:
        lines = []
        with contextlib.suppress(EOFError):
            while not line.rstrip().endswith(_QUOTES):
                lines.append(line)
                line = self._line(CONTINUATION)
            lines.append(line.rstrip().removesuffix(_QUOTES))
        return "\n".join(lines).strip("\n")

    def _line(self, prompt: str) -> str:
        if self.interactive:
            return input(prompt)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.removesuffix("\n")
