"""The roofline's counts, by hand and one by one."""

from __future__ import annotations

import pytest
from support import TINY, tiny_model

from jaxllm.bench import Chunk, Cost, ModelCosts
from jaxllm.kv_cache import kv_spec
from jaxllm.models.moe_config import MoEConfig

WIDTH, INNER, VOCAB, LAYERS = (TINY[name] for name in ("hidden_size", "intermediate_size", "vocab_size", "num_layers"))
QUERIES, KEYS = TINY["num_heads"] * TINY["head_dim"], TINY["num_kv_heads"] * TINY["head_dim"]
MATRICES = LAYERS * (WIDTH * (QUERIES + 2 * KEYS) + QUERIES * WIDTH + 3 * WIDTH * INNER)
HEAD = WIDTH * VOCAB
NORMS = LAYERS * 2 * WIDTH
KV = 2 * LAYERS * KEYS


def costs_of(dtype="float32", **changes):
    model, _ = tiny_model(dtype, **changes)
    return ModelCosts.of(model, kv_spec(model.config, model.dtype))


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_a_decoding_step_reads_all_weights_once_and_each_context(dtype, size):
    costs = costs_of(dtype)
    contexts = [5, 17, 100]
    cost = costs.step([Chunk(context, 1) for context in contexts])
    weights = MATRICES + NORMS + HEAD
    assert cost.bytes == size * (weights + sum(contexts) * KV + 3 * (KV + WIDTH))
    pairs = sum(context + 1 for context in contexts)
    assert cost.flops == 3 * 2 * (MATRICES + HEAD) + 4 * LAYERS * QUERIES * pairs


def test_an_untied_embedding_is_not_read_as_a_whole():
    tied, untied = costs_of(), costs_of(tie_word_embeddings=False)
    assert untied.step([Chunk(3, 1)]) == tied.step([Chunk(3, 1)])


def test_the_head_is_read_where_a_token_is_sampled():
    costs = costs_of()
    with_head, without = costs.step([Chunk(0, 8)]), costs.step([Chunk(0, 8, sampled=False)])
    assert with_head.bytes - without.bytes == 4 * HEAD
    assert with_head.flops - without.flops == 2 * HEAD


@pytest.mark.parametrize("window", [None, 1, 4, 9, 50])
@pytest.mark.parametrize(("start", "count"), [(0, 1), (0, 12), (3, 4), (8, 2), (20, 30)])
def test_windows_limit_what_queries_see(window, start, count):
    costs = costs_of(sliding_window=window)
    cost = costs.step([Chunk(start, count)])
    pairs, earlier = _counted(start, count, window)
    assert cost.flops == count * costs.layer_flops + costs.head_flops + LAYERS * pairs * costs.attention_flops
    assert cost.bytes == (costs.layer_bytes + costs.head_bytes + LAYERS * (earlier + count) * costs.kv_bytes
                          + count * costs.embedding_bytes)


def _counted(start, count, window):
    """Pairs of a query and a key that it sees, and the keys before the chunk among them, one by one."""
    seen = [{key for key in range(position + 1) if window is None or key > position - window}
            for position in range(start, start + count)]
    return sum(map(len, seen)), len({key for keys in seen for key in keys if key < start})


def test_layers_with_and_without_a_window_are_counted_by_themselves():
    costs = costs_of(num_layers=3, sliding_window=4, full_layers=(1,))
    cost = costs.step([Chunk(9, 5)])
    (near_pairs, near), (all_pairs, every) = _counted(9, 5, 4), _counted(9, 5, None)
    assert cost.flops - 5 * costs.layer_flops - costs.head_flops == (2 * near_pairs + all_pairs) * costs.attention_flops
    assert cost.bytes - costs.layer_bytes - costs.head_bytes - 5 * costs.embedding_bytes == (
        2 * near + every + 3 * 5) * costs.kv_bytes


@pytest.mark.parametrize(("window", "own"), [(None, 4), (3, 2), (8, 4)])
def test_what_another_sequence_reads_anyway_is_not_read_again(window, own):
    costs = costs_of(sliding_window=window)
    alone, shared = costs.step([Chunk(10, 1)]), costs.step([Chunk(10, 1), Chunk(10, 1, shared=6)])
    assert shared.bytes - alone.bytes == LAYERS * (own + 1) * costs.kv_bytes + costs.embedding_bytes
    assert shared.flops == 2 * alone.flops


def test_prompts_fill_steps_up_to_the_budget():
    costs = costs_of()
    assert costs.prefill([Chunk(0, 10)], 16) == costs.step([Chunk(0, 10)])
    assert costs.prefill([Chunk(0, 32)], 16) == costs.step([Chunk(0, 16, False)]) + costs.step([Chunk(16, 16)])
    assert costs.prefill([Chunk(0, 10), Chunk(4, 8, shared=3)], 16) == (
        costs.step([Chunk(0, 10), Chunk(4, 6, False, 3)]) + costs.step([Chunk(10, 2, shared=3)]))


def test_decoding_adds_up_its_steps():
    costs = costs_of()
    steps = [costs.step([Chunk(context, 1)] * 3) for context in (9, 10, 11)]
    assert costs.decode(9, 3, sequences=3) == steps[0] + steps[1] + steps[2]
    assert costs.decode(9, 0) == Cost()


def test_the_slower_of_reading_and_computing_bounds_the_time():
    assert Cost(bytes=100, flops=50).seconds(10, 50) == 10
    assert Cost(bytes=100, flops=5000).seconds(10, 50) == 100


def test_of_experts_those_count_that_a_token_takes():
    dense, routed = costs_of(), costs_of(moe=MoEConfig(5, 2, INNER))
    mlp = 3 * WIDTH * INNER * LAYERS
    more = mlp + 5 * WIDTH * LAYERS  # two experts in place of one MLP, and routers
    assert routed.layer_bytes - dense.layer_bytes == 4 * more
    assert routed.layer_flops - dense.layer_flops == 2 * more
