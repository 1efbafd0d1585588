"""``Router``: which replica a request goes to, by the prefix it shares with earlier ones and by load."""

from __future__ import annotations

import collections

from jaxllm.engine.prefix_hash import HashChain, PrefixIdentity
from jaxllm.engine.request import Request

EXPECTED_OUTPUT = 256
"""Tokens that a sample counts for at most: how many of ``max_tokens`` come is not known beforehand."""
RECOMPUTED = 2
"""How much a prompt token that a replica has to compute counts beside its load, where another replica has it cached:
it takes a place in a step, and its block one that another prefix could keep."""


class Router:
    """Sends each request where ``load + RECOMPUTED x tokens of its prompt not cached there`` is least.

    The load of a replica is, over its unfinished requests, the prompt tokens that it had to compute and the outputs
    that are to come, each at most ``EXPECTED_OUTPUT``. What it has cached is taken to be the blocks of the prompts sent
    there, the latest used first, as many as its pool has. So requests with a common beginning of ``n`` tokens go to one
    replica until it is about ``RECOMPUTED x n`` tokens ahead of another. The first replica wins a tie.

    There is no clock and no chance in it, and nothing of how far a request has come: processes that send and end the
    same requests in the same order decide alike.
    """

    def __init__(self, num_replicas: int, block_size: int, num_blocks: int, *, enable_prefix_caching: bool = True
                 ) -> None:
        self._block_size = block_size
        self._num_blocks = num_blocks
        self._enable_prefix_caching = enable_prefix_caching
        self._loads = [0] * num_replicas
        self._cached: list[collections.OrderedDict[bytes, None]] = [
            collections.OrderedDict() for _ in range(num_replicas)]
        self._open: dict[str, tuple[int, int]] = {}
        self._lost: set[int] = set()

    @property
    def loads(self) -> tuple[int, ...]:
        """Of each replica, in tokens."""
        return tuple(self._loads)

    def route(self, request: Request) -> int | None:
        """The replica that the request goes to, which it counts for until ``release``; ``None`` if all are lost."""
        hashes = self._hashes(request)
        computed = [len(request.prompt_token_ids) - self._shared(request, cached, hashes) for cached in self._cached]
        candidates = [number for number in range(len(self._loads)) if number not in self._lost]
        if not candidates:
            return None
        chosen = min(candidates, key=lambda number: self._loads[number] + RECOMPUTED * computed[number])
        outputs = len(request.sequences) * min(request.max_tokens, EXPECTED_OUTPUT)
        weight = computed[chosen] + outputs
        self._open[request.request_id] = chosen, weight
        self._loads[chosen] += weight
        self._remember(self._cached[chosen], hashes)
        return chosen

    def release(self, request_id: str) -> None:
        """The request has ended, or was never queued."""
        replica, weight = self._open.pop(request_id)
        self._loads[replica] -= weight

    def forget_prefixes(self, replica: int | None = None) -> None:
        """The prefix cache of a replica, or of all, has been emptied."""
        for number, cached in enumerate(self._cached):
            if replica in (None, number):
                cached.clear()

    def lose(self, replica: int) -> None:
        """Send nothing there any more."""
        self._lost.add(replica)

    def _hashes(self, request: Request) -> list[bytes]:
        if not self._enable_prefix_caching or len(self._loads) == 1:
            return []
        chain = HashChain(PrefixIdentity(cache_salt=request.params.cache_salt), self._block_size)
        chain.extend(request.prompt_token_ids)
        return chain.hashes

    def _shared(self, request: Request, cached: collections.OrderedDict[bytes, None], hashes: list[bytes]) -> int:
        """Prompt tokens that need not be computed."""
        usable = hashes[:request.sequences[0].num_reusable // self._block_size]
        found = next((number for number, digest in enumerate(usable) if digest not in cached), len(usable))
        return found * self._block_size

    def _remember(self, cached: collections.OrderedDict[bytes, None], hashes: list[bytes]) -> None:
        for digest in reversed(hashes):  # of a prefix the tail is forgotten first
            cached[digest] = None
            cached.move_to_end(digest)
        while len(cached) > self._num_blocks:
            cached.popitem(last=False)
