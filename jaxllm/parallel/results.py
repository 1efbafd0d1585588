"""``Results``: what the devices of one process have computed, given to processes that need it on the host."""

from __future__ import annotations

import collections
import json
import pickle
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

from jaxllm.parallel.lifeline import Lifeline

_LENGTHS = struct.Struct("<IQ")


class Results:
    """Connections of their own, from every process to process 0, which passes on what is meant for others.

    Values are pickled: whoever speaks knows the token that only the processes of the job have, and all of them run the
    same script.

    connections: process 0's to all others, the others' to process 0.
    """

    def __init__(self, line: Lifeline, connections: dict[int, socket.socket]) -> None:
        self._line = line
        self._connections = connections
        self._sending = {process: threading.Lock() for process in connections}
        self._arrived: dict[int, dict[int, Any]] = collections.defaultdict(dict)
        self._change = threading.Condition()
        for process, connection in connections.items():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._read, args=(process, connection), name="jaxllm-results", daemon=True).start()

    def send(self, engine: int, step: int, values: Any, receivers: Sequence[int]) -> None:
        """Give them the values of a step."""
        self._pass_on(json.dumps([engine, step, list(receivers)]).encode(), pickle.dumps(values, protocol=5), receivers)

    def wait(self, engine: int, step: int) -> Any:
        """The values of a step. Those of earlier ones are forgotten; whoever dies meanwhile ends this process."""
        with self._change:
            arrived = self._arrived[engine]
            self._change.wait_for(lambda: step in arrived)
            for earlier in [number for number in arrived if number < step]:
                del arrived[earlier]
            return arrived.pop(step)

    def _pass_on(self, header: bytes, payload: bytes, receivers: Sequence[int]) -> None:
        message = _LENGTHS.pack(len(header), len(payload)) + header + payload
        targets = [process for process in receivers if process != 0] if self._line.process == 0 else [0]
        for process in targets:
            with self._sending[process]:
                self._connections[process].sendall(message)

    def _read(self, sender: int, connection: socket.socket) -> None:
        """What arrives, until the connection ends: of a lost process the lifeline tells."""
        with connection.makefile("rb") as stream:
            try:
                while lengths := stream.read(_LENGTHS.size):
                    sizes = _LENGTHS.unpack(lengths)
                    header, payload = (stream.read(size) for size in sizes)
                    engine, step, receivers = json.loads(header)
                    if self._line.process in receivers:
                        self._take(engine, step, pickle.loads(payload))
                    if self._line.process == 0:
                        self._pass_on(header, payload, [process for process in receivers if process != sender])
            except OSError:
                return
            except Exception as error:
                self._line.fail(f"cannot read what {self._line.name(sender)} computed: {error!r}")

    def _take(self, engine: int, step: int, values: Any) -> None:
        with self._change:
            self._arrived[engine][step] = values
            self._change.notify_all()
