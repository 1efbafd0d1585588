"""SentencePiece merging, against an oracle that merges one pair at a time as SentencePiece and llama.cpp define it."""

from __future__ import annotations

import itertools
import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenization.toy_tokenizers import sentencepiece_metadata

from jaxllm.tokenization import Tokenizer, from_gguf
from jaxllm.tokenization.spm import merges_from_scores


def _oracle(text: str, ids: dict[str, int], scores: list[float]) -> list[int]:
    """Join the pair whose joined token scores highest, the leftmost of equals, until none is left."""
    symbols = list(text)
    while True:
        candidates = [
            (-scores[ids[left + right]], index)
            for index, (left, right) in enumerate(itertools.pairwise(symbols))
            if left + right in ids
        ]
        if not candidates:
            break
        _, index = min(candidates)
        symbols[index : index + 2] = [symbols[index] + symbols[index + 1]]
    result = []
    for symbol in symbols:
        spelled = [f"<0x{byte:02X}>" for byte in symbol.encode()]
        result.extend([ids[symbol]] if symbol in ids else [ids[byte] for byte in spelled])
    return result


def _random_pieces(seed: int) -> list[str]:
    rng = random.Random(seed)
    pieces = set("ab\u2581")
    for _ in range(30):
        left, right = rng.choice(sorted(pieces)), rng.choice(sorted(pieces))
        if len(left + right) <= 6:
            pieces.add(left + right)
    shuffled = sorted(pieces)
    rng.shuffle(shuffled)
    return shuffled


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 10**6), text=st.text(alphabet="ab cé", max_size=30))
def test_ids_equal_score_driven_merging(seed: int, text: str) -> None:
    metadata = sentencepiece_metadata(_random_pieces(seed), **{"tokenizer.ggml.add_space_prefix": False})
    ids = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    tokenizer = from_gguf(metadata)
    escaped = text.replace(" ", "\u2581")
    expected = _oracle(escaped, ids, metadata["tokenizer.ggml.scores"])
    assert tokenizer.encode(text, add_special_tokens=False) == expected


def test_gemma_ids_equal_score_driven_merging(gemma3: Tokenizer) -> None:
    text = "The haha-banana bandana, abracadabra; mississippi!!! ======= ????? 0000 ababababa nanana"
    ids = gemma3.backend.get_vocab(with_added_tokens=False)
    # Gemma's scores fall with the id.
    scores = [-float(index) for index in range(len(ids))]
    assert gemma3.encode(text, add_special_tokens=False) == _oracle(text.replace(" ", "\u2581"), ids, scores)


def test_merges_follow_scores_and_never_make_a_reserved_token() -> None:
    ids = {"a": 0, "b": 1, "ab": 2, "ba": 3, "aba": 4}
    scores = [0.0, 0.0, -2.0, -1.0, -3.0]
    assert merges_from_scores(ids, scores) == [("b", "a"), ("a", "b"), ("a", "ba"), ("ab", "a")]
    assert merges_from_scores(ids, scores, reserved=[3]) == [("a", "b"), ("a", "ba"), ("ab", "a")]


def test_a_control_token_spelled_in_text_is_not_formed_by_merging() -> None:
    metadata = sentencepiece_metadata(["\u2581", "x", "<", "/", "s", ">", "</", "s>"])
    tokenizer = from_gguf(metadata)
    spelled = tokenizer.encode("x</s>", add_special_tokens=False, parse_special=False)
    assert 2 not in spelled
    assert tokenizer.decode(spelled) == "x</s>"
    assert tokenizer.encode("x</s>", add_special_tokens=False)[-1] == 2
