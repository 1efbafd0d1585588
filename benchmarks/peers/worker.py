"""``Worker``: a driver in a process of its own, which works when told to and can be paused otherwise."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import Workload
from peers import processes
from peers.engines import EngineSpec

FOLDER = Path(__file__).parent


class EngineFailed(Exception):
    """An engine ended, answered with an error or took too long."""


class Worker:
    """A running driver. ``close`` it, or use it as a context."""

    def __init__(self, engine: EngineSpec, options: Mapping[str, Any], log: Path, timeout: float) -> None:
        """Start the engine and wait until it is ready. options: on top of the engine's own. log: what it prints goes
        there. timeout: seconds that any answer may take. Raises ``EngineFailed``."""
        self.name = engine.name
        self._timeout = timeout
        self._log = log
        environment = {**os.environ, **engine.environment}
        self.started = time.perf_counter()
        with log.open("a") as output:
            self._process = subprocess.Popen(
                [str(engine.python), str(FOLDER / engine.driver), json.dumps({**engine.options, **options})],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, env=environment, start_new_session=True)
        try:
            self.version: str = self._answer()["version"]
        except BaseException:
            self.close()
            raise

    def generate(self, workload: Workload, *, cold: bool = True, sampling: Mapping[str, Any] | None = None
                 ) -> dict[str, Any]:
        """``protocol.Driver.generate``. Raises ``EngineFailed``, also if a request has other than its tokens."""
        requests = [{"prompt": work.prompt, "max_tokens": work.max_tokens} for work in workload.requests]
        command = {"requests": requests, "cold": cold, "sampling": dict(sampling or {})}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise EngineFailed(f"{self.name} is gone ({error}); see {self._log}") from None
        found = self._answer()
        counts = [len(tokens) for tokens in found["tokens"]]
        if counts != [work.max_tokens for work in workload.requests]:
            raise EngineFailed(f"{self.name} generated {counts} tokens, which are not those of {workload.name}")
        return found

    @property
    def process(self) -> int:
        """The driver's process id, which is that of its process group too."""
        return self._process.pid

    def pause(self) -> None:
        """Stop the engine's processes where they are: some engines' threads spin while they have nothing to do."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """End ``pause``."""
        self._signal(signal.SIGCONT)

    def peak_memory(self) -> int:
        """Bytes; see ``processes.peak_memory``."""
        return processes.peak_memory(self._process.pid)

    def close(self) -> None:
        """End the engine and everything that it started."""
        self.resume()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _answer(self) -> dict[str, Any]:
        line, deadline = b"", time.monotonic() + self._timeout
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                self.close()
                raise EngineFailed(f"{self.name} did not answer within {self._timeout:.0f} s; see {self._log}")
            part = os.read(descriptor, 1 << 20)
            if not part:
                raise EngineFailed(f"{self.name} ended with status {self._process.wait()}; see {self._log}")
            line += part
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineFailed(f"{answer['error']}; see {self._log}")
        return answer
