from __future__ import annotations

import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.engine import prefix_hash
from jaxllm.engine.prefix_hash import HashChain, PrefixIdentity

TOKENS = np.arange(50, dtype=np.int32)


def test_identities_that_differ_in_any_field_have_different_roots() -> None:
    texts = [None, "", "a", "ab", "abc", "bc", "c", "N", "1", "\ud800"]
    identities = list(itertools.starmap(PrefixIdentity, itertools.product((0, 1, 10), texts, texts)))
    assert len({identity.root_hash() for identity in identities}) == len(identities)


TEXTS = st.text("aN\0", max_size=3)


@given(st.tuples(TEXTS, TEXTS), st.tuples(TEXTS, TEXTS))
def test_adapter_and_salt_do_not_run_into_each_other(one: tuple[str, str], other: tuple[str, str]) -> None:
    same = PrefixIdentity(0, *one).root_hash() == PrefixIdentity(0, *other).root_hash()
    assert same == (one == other)


def test_a_hash_depends_on_every_token_before_and_on_the_root() -> None:
    def last_hash(tokens: np.ndarray, identity: PrefixIdentity = PrefixIdentity()) -> bytes:  # noqa: B008
        chain = HashChain(identity, block_size=4)
        chain.extend(tokens)
        return chain.hashes[-1]

    variants = {last_hash(TOKENS[:12]), last_hash(TOKENS[:12], PrefixIdentity(cache_salt="s")), last_hash(TOKENS[4:16])}
    for position in range(12):
        changed = TOKENS[:12].copy()
        changed[position] += 1
        variants.add(last_hash(changed))
    assert len(variants) == 15


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 9))
def test_hashing_as_tokens_arrive_equals_hashing_all_at_once(lengths: list[int], block_size: int) -> None:
    piecewise, at_once = (HashChain(PrefixIdentity(), block_size) for _ in range(2))
    for length in sorted(lengths):
        piecewise.extend(TOKENS[:length])
    at_once.extend(TOKENS[: max(lengths, default=0)])
    assert piecewise.hashes == at_once.hashes
    assert len(piecewise.hashes) == max(lengths, default=0) // block_size


def test_each_block_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = HashChain(PrefixIdentity(), block_size=4)
    counting = mock.Mock(wraps=prefix_hash.blake2b)
    monkeypatch.setattr(prefix_hash, "blake2b", counting)
    for length in range(len(TOKENS) + 1):
        chain.extend(TOKENS[:length])
    assert counting.call_count == len(TOKENS) // 4


def test_a_copy_goes_its_own_way() -> None:
    parent = HashChain(PrefixIdentity(), block_size=4, generation=3)
    parent.extend(TOKENS[:8])
    child = parent.copy()
    assert (child.hashes, child.root, child.block_size, child.generation) == (parent.hashes, parent.root, 4, 3)
    child.extend(TOKENS[:12])
    assert len(parent.hashes) == 2
    assert len(child.hashes) == 3


def test_hashes_are_the_same_in_every_process_and_on_every_platform() -> None:
    chain = HashChain(PrefixIdentity(1, None, "salt"), block_size=4)
    chain.extend(TOKENS[:4].astype(">i4"))
    assert chain.hashes[0].hex() == "665b4aa372cdc5ddcaffb2daae4ea42b"
