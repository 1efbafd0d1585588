"""A model whose logits come from a table, run by the real runner, programs and sampler.

It is a Llama of one layer that adds nothing: embeddings are one-hot, attention and MLP write zeros, and the head holds
the table. With a width that is a power of 4 the norm of a one-hot row is exact, so that the logits after token ``t``
are ``table[t]``, bit for bit in float32. All tables have the same size: engines of equal sizes share their executables.
"""

from __future__ import annotations

import functools
import itertools
import json

import jax.numpy as jnp
import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from jaxllm import LLM
from jaxllm.engine.build import layers_per_program
from jaxllm.engine.core import Engine
from jaxllm.engine.sizes import EngineSizes, cache_spec, choose_config
from jaxllm.models.config import DecoderConfig
from jaxllm.models.model import build_model, nest
from jaxllm.runner.programs import Programs
from jaxllm.runner.runner import Runner
from jaxllm.tokenization import Tokenizer

SIZE = 64
"""Ids 0 to 63."""
START = 0
"""The id that prompts end with: scripts begin after it."""
SIZES = {"max_model_len": 64, "max_num_seqs": 8, "max_num_batched_tokens": 32, "block_size": 4,
         "kv_cache_bytes": 1 << 20}
_TWIN = "\ue000"  # appended to spell the same text by another id; the decoder drops it
_SCALE = np.float32(SIZE**0.5)


def flat_table():
    """After every token all are equally likely."""
    return np.zeros((SIZE, SIZE), np.float32)


def path_table(*paths, logit=30.0):
    """A table that follows each path of ids with all but certainty: after ``path[i]`` comes ``path[i + 1]``."""
    table = flat_table()
    for path in paths:
        for here, there in itertools.pairwise(path):
            if table[here].any():
                raise ValueError(f"two paths lead on from id {here}")
            table[here, there] = logit
    return table


def script(number):
    """A table that says ids 1 to ``number`` after ``START``, then ``number`` for ever."""
    return path_table([START, *range(1, number + 1), number])


def spelling(*pieces, special=(), bos=None, end=()):
    """A tokenizer of ``SIZE`` ids: 0 is "<start>", then come ``pieces`` (several may be equal; ``bytes`` of length 1
    are byte tokens), then ``special`` tokens, then fillers. For scripts of ids; text is encoded letter by letter.

    bos: the special token that ``encode`` puts first. end: the special tokens that end a sequence.
    """
    ids = {token: 1 + len(pieces) + number for number, token in enumerate(special)}
    backend = _backend(pieces, special, bos)
    return Tokenizer(backend, bos_token_id=ids.get(bos), eos_token_ids=[ids[token] for token in end])


def _backend(pieces, special, bos):
    names = ["<start>"]
    for piece in pieces:
        name = f"<0x{piece[0]:02X}>" if isinstance(piece, bytes) else piece
        while name in names:
            name += _TWIN
        names.append(name)
    names += special
    names += [f"<filler {token}>" for token in range(len(names), SIZE)]
    vocabulary = {name: token for token, name in enumerate(names)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<start>"))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Sequence([decoders.Replace(_TWIN, ""), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if bos is not None:
        backend.post_processor = processors.TemplateProcessing(f"{bos} $A", special_tokens=[(bos, vocabulary[bos])])
    return backend


_CONFIG = DecoderConfig(
    family="llama", vocab_size=SIZE, hidden_size=SIZE, num_layers=1, num_heads=1, num_kv_heads=1, head_dim=8,
    intermediate_size=8, max_position_embeddings=512, norm_eps=0.0)


@functools.cache
def _model():
    return build_model(_CONFIG, jnp.dtype("float32"))


@functools.cache
def _programs(config):
    return Programs(_model(), cache_spec(_model(), "auto"), config, layers_per_program())


def table_params(table):
    """The parameters of the model with this table."""
    leaves = {path: jnp.zeros(spec.shape, spec.dtype) for path, spec in _model().specs.items()}
    leaves |= {path: jnp.ones(spec.shape, spec.dtype) for path, spec in _model().specs.items() if "norm" in path}
    leaves["embedding.weight"] = jnp.eye(SIZE, dtype=jnp.float32)
    leaves["head.weight"] = jnp.asarray(np.asarray(table, np.float32).T / _SCALE)
    return nest(leaves)


def engine_on(table, tokenizer=None, end=(), **sizes):
    """An engine that draws from the table; ``end`` holds its end-of-sequence ids, besides the tokenizer's."""
    config, _ = choose_config(_model(), EngineSizes(**{**SIZES, **sizes}), tokenizer)
    ends = [*(() if tokenizer is None else tokenizer.eos_token_ids), *end]
    return Engine(Runner(_programs(config), table_params(table)), config, tokenizer, ends)


def write_folder(path, table, *pieces, special=(), bos=None, end=(), generation_config=None, chat_template=None):
    """The model and its ``spelling`` as a Hugging Face folder, for what only ``LLM`` does.

    end: the tokenizer's end-of-sequence token, then further ones, which only ``generation_config.json`` names.
    """
    tokenizer = spelling(*pieces, special=special, bos=bos, end=end)
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": SIZE, "hidden_size": SIZE,
        "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": _CONFIG.head_dim,
        "intermediate_size": _CONFIG.intermediate_size, "rms_norm_eps": 0.0, "tie_word_embeddings": False,
        "max_position_embeddings": _CONFIG.max_position_embeddings,
        "bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}))
    save_file(_tensors(table), path / "model.safetensors")
    tokenizer.backend.save(str(path / "tokenizer.json"))
    settings = {"bos_token": bos, "eos_token": end[0] if end else None, "chat_template": chat_template}
    (path / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    if end or generation_config:
        (path / "generation_config.json").write_text(json.dumps(
            {"eos_token_id": list(tokenizer.eos_token_ids), **(generation_config or {})}))
    return path


def _tensors(table):
    heads, inner = _CONFIG.head_dim, _CONFIG.intermediate_size
    layer = {"self_attn.q_proj": (heads, SIZE), "self_attn.k_proj": (heads, SIZE), "self_attn.v_proj": (heads, SIZE),
             "self_attn.o_proj": (SIZE, heads), "mlp.gate_proj": (inner, SIZE), "mlp.up_proj": (inner, SIZE),
             "mlp.down_proj": (SIZE, inner)}
    tensors = {f"model.layers.0.{name}.weight": np.zeros(shape, np.float32) for name, shape in layer.items()}
    for name in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
        tensors[f"model.{name}.weight"] = np.ones(SIZE, np.float32)
    tensors["model.embed_tokens.weight"] = np.eye(SIZE, dtype=np.float32)
    tensors["lm_head.weight"] = np.ascontiguousarray(np.asarray(table, np.float32).T / _SCALE)
    return tensors


def llm_on(path, table, *pieces, special=(), bos=None, end=(), generation_config=None, chat_template=None, **options):
    """``LLM`` on the folder that ``write_folder`` makes at ``path``."""
    folder = write_folder(path, table, *pieces, special=special, bos=bos, end=end, generation_config=generation_config,
                          chat_template=chat_template)
    return LLM(folder, dtype="float32", **{**SIZES, **options})
