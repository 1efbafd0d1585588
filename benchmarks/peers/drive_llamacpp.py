"""Drives llama.cpp's server over HTTP on this machine.

Options: ``server``, the program; ``model``, a .gguf file; ``max_slots``. The server has one slot for each request of a
call, up to ``max_slots``, and a context that holds the longest in each; where a call needs others than the one before,
the server is started anew, before the clock runs. What it prints goes to standard error.

Weights are used as the file has them: the copies that the server makes for AMX end it with an illegal instruction in
0.5.0-dev as compiled by GCC 12 (a tile is zeroed by a thread that has configured none). For bfloat16 it makes none, and
for Q4_1 no others.
"""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from protocol import THREADS, Requests, serve

CONTEXT_STEP = 256
ENDS_WITHIN = 10
"""Seconds."""


class LlamaServer:
    """``llama-server`` and requests to it."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._sizes = (0, 0)
        self._port = 0
        found = subprocess.run([options["server"], "--version"], capture_output=True, text=True, check=True)
        lines = (found.stdout + found.stderr).splitlines()
        self.version = "llama.cpp " + next(line for line in lines if line.startswith("version")).partition(": ")[2]

    def generate(self, requests: Requests, *, cold: bool, sampling: dict[str, Any]) -> dict[str, Any]:
        """See ``protocol.Driver``. Token times are known of single requests only: streams cost the client too much."""
        if sampling:
            raise ValueError("only greedy generation is implemented")
        self._start(requests)
        if len(requests) == 1:
            started = time.perf_counter()
            events = self._stream(requests[0], cold)
            tokens = [token for _, event in events for token in event.get("tokens", [])]
            times = [at - started for at, event in events if event.get("tokens")]
            return {"seconds": time.perf_counter() - started, "first": [times[0]], "last": [times[-1]],
                    "tokens": [tokens]}
        with ThreadPoolExecutor(len(requests)) as pool:
            started = time.perf_counter()
            replies = list(pool.map(lambda request: self._complete(request, cold), requests))
            seconds = time.perf_counter() - started
        unknown = [None] * len(requests)
        return {"seconds": seconds, "first": unknown, "last": unknown, "tokens": [reply["tokens"] for reply in replies]}

    def close(self) -> None:
        """End the server, which sometimes waits for itself for ever when it is asked to."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(ENDS_WITHIN)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def _start(self, requests: Requests) -> None:
        """A server with slots enough, each with room for the longest request."""
        longest = max(len(request["prompt"]) + request["max_tokens"] for request in requests) + 1
        sizes = (min(len(requests), self._options["max_slots"]), -(-longest // CONTEXT_STEP) * CONTEXT_STEP)
        if self._process is not None and sizes == self._sizes:
            return
        self.close()
        slots, context = self._sizes = sizes
        self._port = _free_port()
        self._process = subprocess.Popen([
            self._options["server"], "--model", self._options["model"], "--host", "127.0.0.1", "--port",
            str(self._port), "--threads", str(THREADS), "--threads-batch", str(THREADS), "--parallel", str(slots),
            "--ctx-size", str(slots * context), "--flash-attn", "on", "--cache-ram", "0",
            "--no-repack"])
        while not self._is_healthy():
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with status {self._process.returncode}")
            time.sleep(0.01)

    def _is_healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def _complete(self, request: dict[str, Any], cold: bool) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._post(request, cold, stream=False).read())
        return found

    def _stream(self, request: dict[str, Any], cold: bool) -> list[tuple[float, dict[str, Any]]]:
        data = (line.removeprefix(b"data: ") for line in self._post(request, cold, stream=True) if line.strip())
        return [(time.perf_counter(), json.loads(event)) for event in data]

    def _post(self, request: dict[str, Any], cold: bool, *, stream: bool) -> http.client.HTTPResponse:
        body = {"prompt": request["prompt"], "n_predict": request["max_tokens"], "ignore_eos": True, "temperature": 0,
                "samplers": ["temperature"], "cache_prompt": not cold, "stream": stream, "return_tokens": True}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=1800)
        connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"the server answered {response.status}: {response.read().decode(errors='replace')}")
        return response


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


if __name__ == "__main__":
    serve(LlamaServer)
