"""Whatever combination of keywords is taken is enforced. Oracle: the validator of ``json_oracle``."""

from __future__ import annotations

import numpy as np
import pytest
from structured.json_oracle import is_valid, parse
from structured.random_schemas import random_document
from structured.walks import random_walk
from tokenization.toy_tokenizers import byte_level_tokenizer

from jaxllm.errors import ParameterError
from jaxllm.structured import GrammarCompiler, StructuredOutputsParams
from jaxllm.tokenization import Tokenizer

_TOKENS = [*(bytes([byte]) for byte in range(256)), "true", "false", "null", '":', '", "', "}]", "é]"]


@pytest.fixture(scope="module")
def tokenizer():
    backend = byte_level_tokenizer(_TOKENS, special=["</s>"]).backend
    return Tokenizer(backend, eos_token_ids=[len(_TOKENS)])


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.sweep) for block in range(1, 12))])
def test_texts_satisfy_their_schema(tokenizer, block):
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, frozenset(tokenizer.eos_token_ids))
    taken = 0
    for seed in range(200 * block, 200 * block + 200):
        generator = np.random.default_rng(seed)
        schema = random_document(generator)
        try:
            grammar = compiler.compile(StructuredOutputsParams(json=schema, disable_any_whitespace=True))
        except ParameterError:
            continue
        taken += 1
        text = tokenizer.decode(random_walk(grammar, tokenizer, generator, limit=2000))
        assert is_valid(parse(text), schema), (seed, schema, text)
    assert taken > 120
