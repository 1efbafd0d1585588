"""Cached prefixes are shared by requests whose keys and values are the same, and by no others."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from support import bits, greedy, prompts, run, tiny_engine

from jaxllm.engine.prefix_hash import HashChain, PrefixIdentity

PROMPT = prompts(1, seed=1, low=40, high=41)[0]


def _hashes(identity, tokens=PROMPT):
    chain = HashChain(identity, 8)
    chain.extend(np.asarray(tokens, np.int32))
    return chain.hashes


@pytest.mark.case(14)
def test_adapters_are_told_apart_by_their_content_whatever_their_name():
    """What identifies an adapter is a digest of its weights: one name with new weights is another adapter."""
    before, after = PrefixIdentity(adapter="sha256:aa"), PrefixIdentity(adapter="sha256:bb")
    assert set(_hashes(before)).isdisjoint(_hashes(after))
    assert set(_hashes(before)).isdisjoint(_hashes(PrefixIdentity()))
    assert _hashes(before) == _hashes(PrefixIdentity(adapter="sha256:aa"))


@pytest.mark.case(14)
def test_no_two_identities_share_a_root():
    versions, texts = (0, 1, 11), (None, "", "a", "b", "ab", "1", "\x00")
    identities = [PrefixIdentity(version, adapter, salt) for version, adapter, salt
                  in itertools.product(versions, texts, texts)]
    roots = {identity.root_hash() for identity in identities}
    assert len(roots) == len(identities)


@pytest.mark.case(14)
def test_a_block_is_found_only_behind_the_same_prefix():
    same = list(range(16))
    one, other = (_hashes(PrefixIdentity(), [*first, *same]) for first in (range(8), range(1, 9)))
    assert set(one).isdisjoint(other)


@pytest.mark.case(14)
def test_requests_share_prefixes_only_within_one_salt():
    engine = tiny_engine()
    cached = [run(engine, [(PROMPT, greedy(2, cache_salt=salt))])[0].num_cached_tokens
              for salt in ("a", "b", None, "a", "b", None, "", "c")]
    assert cached == [0, 0, 0, 32, 32, 32, 0, 0]


@pytest.mark.case(14)
def test_salts_change_nothing_but_the_sharing():
    engine = tiny_engine()
    params = [greedy(5, cache_salt=salt, logprobs=2) for salt in (None, "a", "b", "a")]
    outputs = run(engine, [(PROMPT, each) for each in params])
    assert len({repr(bits(output)) for output in outputs}) == 1


@pytest.mark.case(14)
def test_a_prompt_with_another_beginning_is_answered_as_by_itself():
    other = PROMPT[8:16] + PROMPT[8:]  # equal from its second block on
    engine = tiny_engine()
    wanted = [bits(run(tiny_engine(enable_prefix_caching=False), [(prompt, greedy(5, logprobs=2))])[0])
              for prompt in (PROMPT, other)]
    found = [run(engine, [(prompt, greedy(5, logprobs=2))])[0] for prompt in (PROMPT, other)]
    assert [bits(output) for output in found] == wanted
    assert found[1].num_cached_tokens == 0
