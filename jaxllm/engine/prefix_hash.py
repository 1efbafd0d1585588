"""Content hashes of full blocks, chained so that one hash names a whole prefix."""

from __future__ import annotations

import dataclasses
from hashlib import blake2b

import numpy as np

DIGEST_SIZE = 16


@dataclasses.dataclass(frozen=True, slots=True)
class PrefixIdentity:
    """Everything besides the tokens that the keys and values of a prefix depend on, or that must not share them.

    weight_version: changes with the model's weights.
    adapter: the identity of the adapter (its content, not its name); ``None`` for the base model.
    cache_salt: the user's; requests share prefixes only within one salt.
    """

    weight_version: int = 0
    adapter: str | None = None
    cache_salt: str | None = None

    def root_hash(self) -> bytes:
        """The parent of the first block's hash.

        Each field is written as a type tag, its length and its bytes, so that no two identities have the same encoding:
        ("a", "bc") differs from ("ab", "c"), and ``None`` from "".
        """
        encoded = b"".join(_encode_field(value) for value in (self.weight_version, self.adapter, self.cache_salt))
        return blake2b(encoded, digest_size=DIGEST_SIZE, person=b"jaxllm-prefix").digest()


class HashChain:
    """The block hashes of one sequence, extended as it grows: each full block is hashed once.

    generation: which life of the prefix cache this chain belongs to; a reset of the cache makes it stale.
    """

    __slots__ = ("block_size", "generation", "hashes", "root")

    def __init__(self, identity: PrefixIdentity, block_size: int, generation: int = 0) -> None:
        self.root = identity.root_hash()
        self.block_size = block_size
        self.generation = generation
        self.hashes: list[bytes] = []

    def extend(self, token_ids: np.ndarray) -> None:
        """Hash the full blocks of ``token_ids`` (the sequence from its first token) that are not hashed yet."""
        first = len(self.hashes)
        full = len(token_ids) // self.block_size
        if full <= first:
            return
        fresh = np.ascontiguousarray(token_ids[first * self.block_size : full * self.block_size], dtype="<i4")
        content = memoryview(fresh).cast("B")
        width = 4 * self.block_size
        parent = self.hashes[-1] if self.hashes else self.root
        for offset in range(0, len(content), width):
            digest = blake2b(parent, digest_size=DIGEST_SIZE)
            digest.update(content[offset : offset + width])
            parent = digest.digest()
            self.hashes.append(parent)

    def copy(self) -> HashChain:
        """An independent chain with the same past, for a fork."""
        twin = HashChain.__new__(HashChain)
        twin.root, twin.block_size, twin.generation = self.root, self.block_size, self.generation
        twin.hashes = self.hashes.copy()
        return twin


def _encode_field(value: int | str | None) -> bytes:
    if value is None:
        tag, content = b"N", b""
    elif isinstance(value, int):
        tag, content = b"I", str(value).encode()
    else:
        # A salt is any Python string, lone surrogates included.
        tag, content = b"S", value.encode("utf-8", "surrogatepass")
    return tag + len(content).to_bytes(8, "little") + content
