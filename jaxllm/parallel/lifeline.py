"""``Lifeline``: how the processes of a job notice that one of them is lost, and end with an error that names it.

JAX's coordination service ends a process by itself when another misses its heartbeats; that takes as long as their
timeout, knows no host, and cannot tell Python (in jaxlib 0.12 a callback in Python ends in ``std::bad_cast``). So
process 0 holds a connection to each of the others besides. One that breaks tells of a lost process at once; what is
said on it, of one that failed. Threads watch them, as the main thread may be in a collective that never returns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import secrets
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

logger = logging.getLogger("jaxllm")

EXIT_CODE = 1
TICK_SECONDS = 0.5
FLUSH_SECONDS = 5.0
Message = dict[str, Any]


@dataclasses.dataclass(slots=True)
class _Peer:
    """The other end of a connection. heard: when it last said something. warned: whether its silence was told of."""

    process: int
    connection: socket.socket
    unread: bytes = b""
    heard: float = dataclasses.field(default_factory=time.monotonic)
    warned: bool = False
    sending: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def send(self, message: Message) -> None:
        """Say something, or nothing where the connection is broken, which is noticed on reading."""
        with self.sending, contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(message).encode() + b"\n")


class Lifeline:
    """A process's connections: process 0's to all others, the others' to process 0, which passes on what it hears.

    hosts: of all processes. silence: after how many seconds without a word a warning is given.
    on_tick: called by the watching thread about twice a second. on_message: is given what is not about life and death.
    """

    def __init__(self, process: int, hosts: list[str], connections: dict[int, socket.socket], silence: float) -> None:
        self.process = process
        self.hosts = hosts
        self.ended: dict[int, Any] = {}
        """What processes said when their scripts ended."""
        self.on_tick: Callable[[], None] = lambda: None
        self.on_message: Callable[[int, Message], None] = lambda process, message: None
        self._silence = silence
        self._peers = {number: _Peer(number, connection) for number, connection in connections.items()}
        self._ending = threading.Lock()
        threading.Thread(target=self._watch_or_fail, name="jaxllm-lifeline", daemon=True).start()

    def name(self, process: int) -> str:
        """A process as errors call it."""
        return f"process {process} of {len(self.hosts)} on host {self.hosts[process]}"

    def send(self, message: Message) -> None:
        """Tell process 0, or, in it, all others."""
        for peer in list(self._peers.values()):
            peer.send(message)

    def fail(self, reason: str, *, process: int | None = None, said: bool = False) -> NoReturn:
        """End this process and all others with an error. process: whose failure it is; by default this one's.

        said: the reason was printed already.
        """
        process = self.process if process is None else process
        with self._ending:  # never given back: who comes second waits for the end
            guard = threading.Timer(FLUSH_SECONDS, os._exit, (EXIT_CODE,))  # a stream that blocks must not keep it
            guard.daemon = True
            guard.start()
            if not said:
                self._say(process, reason)
            self.send({"kind": "failed", "process": process, "reason": reason})
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            # A connection that is closed with something unread takes back what was sent last.
            time.sleep(TICK_SECONDS)
            os._exit(EXIT_CODE)

    def _say(self, process: int, reason: str) -> None:
        also = f" Process {self.process} on host {self.hosts[self.process]} ends too."
        also = "" if process == self.process else also
        with contextlib.suppress(Exception):
            print(f"jaxllm: {self.name(process)} {reason}.{also}", file=sys.stderr, flush=True)

    def _watch_or_fail(self) -> None:
        try:
            self._watch()
        except Exception as error:
            self.fail(f"can no longer watch the others: {error!r}")

    def _watch(self) -> None:
        selector = selectors.DefaultSelector()
        for peer in self._peers.values():
            peer.connection.setblocking(True)
            selector.register(peer.connection, selectors.EVENT_READ, peer)
        said = ticked = time.monotonic()
        while True:
            for key, _ in selector.select(TICK_SECONDS):
                peer = key.data
                if not self._read(peer):
                    selector.unregister(peer.connection)
                    if peer.process not in self.ended:
                        self.fail("is lost: its connection closed without a word (killed, out of memory, or crashed: "
                                  "its own output may say why)", process=peer.process)
                    del self._peers[peer.process]
            now = time.monotonic()
            if now - said > 2 * TICK_SECONDS:
                said = now
                self.send({"kind": "here"})
                self._warn(now)
            if now - ticked > TICK_SECONDS / 2:
                ticked = now
                self.on_tick()

    def _warn(self, now: float) -> None:
        """A warning only: a thread of Python's can be kept from speaking; JAX's heartbeats cannot, and decide."""
        for peer in self._peers.values():
            silent = now - peer.heard > self._silence
            if silent and not peer.warned and peer.process not in self.ended:
                logger.warning("%s has been silent for %.0f s; if it is lost, JAX ends this process when the "
                               "heartbeats time out", self.name(peer.process), now - peer.heard)
            peer.warned = silent

    def _read(self, peer: _Peer) -> bool:
        """Take what has arrived; whether the connection stands."""
        try:
            found = peer.connection.recv(1 << 16)
        except OSError:
            found = b""
        *lines, peer.unread = (peer.unread + found).split(b"\n")
        peer.heard = time.monotonic()
        for line in lines:
            self._take(peer.process, json.loads(line))
        return bool(found)

    def _take(self, sender: int, message: Message) -> None:
        match message["kind"]:
            case "here":
                pass
            case "failed":
                if self.process == 0:
                    self.send(message)
                self.fail(message["reason"], process=message["process"])
            case "ended":
                self.ended[message["process"]] = message["at"]
                if self.process == 0:
                    self.send(message)
            case _:
                self.on_message(sender, message)


def connect(process: int, count: int, host: str, share: Callable[[str | None], str], *, timeout: float
            ) -> tuple[list[str], dict[int, socket.socket]]:
    """Make the connections of one process; the hosts of all, and the connections by process.

    host: of process 0, as the others reach it. share: what process 0 gives it comes out of it in the others.
    """
    own = socket.gethostname()
    deadline = time.monotonic() + timeout
    if process > 0:
        port, token = share(None).split(" ")
        connection = socket.create_connection((host.strip("[]"), int(port)), timeout)
        connection.sendall(json.dumps({"token": token, "process": process, "host": own}).encode() + b"\n")
        return json.loads(_line(connection, deadline)), {0: connection}
    token = secrets.token_hex(16)
    with _listener(count) as listener:
        share(f"{listener.getsockname()[1]} {token}")
        hosts, connections = {0: own}, {}
        while len(hosts) < count:
            listener.settimeout(max(deadline - time.monotonic(), 0.01))
            connection, _ = listener.accept()
            try:
                said = json.loads(_line(connection, min(deadline, time.monotonic() + 10)))
                known = secrets.compare_digest(said["token"], token)
            except (OSError, ValueError, KeyError, TypeError):
                known = False
            if not known:
                connection.close()  # a stranger, such as a scan of ports
                continue
            hosts[said["process"]], connections[said["process"]] = said["host"], connection
    everyone = [hosts[number] for number in range(count)]
    for connection in connections.values():
        connection.sendall(json.dumps(everyone).encode() + b"\n")
    return everyone, connections


def _listener(count: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=count)
    return socket.create_server(("", 0), backlog=count)


def _line(connection: socket.socket, deadline: float) -> bytes:
    """What comes before the end of the line, with nothing taken from after it."""
    found = b""
    while not found.endswith(b"\n"):
        connection.settimeout(max(deadline - time.monotonic(), 0.01))
        byte = connection.recv(1)
        if not byte or len(found) > 1 << 20:
            raise ConnectionError("the connection was closed")
        found += byte
    connection.settimeout(None)
    return found
