"""The vocabulary in a GGUF file's metadata: tokens, their types, and which of them are special."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken

from jaxllm.errors import CheckpointError

# gguf.TokenType
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# Texts that end a turn or a document in the model families that GGUF is used for. The files themselves name one end
# token only, often not the one that the chat template uses.
_END_TEXTS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)

# Found in a text only where special tokens are parsed, as the above, but neither ends of a generation nor hidden.
_CONTROL_TEXTS = (
    "</s>", "<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<\uff5cfim\u2581begin\uff5c>", "<PRE>", "\u2581<PRE>",
    "<|code_prefix|>", "<|prefix|>", "<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<\uff5cfim\u2581hole\uff5c>",
    "<SUF>", "\u2581<SUF>", "<|code_suffix|>", "<|suffix|>", "<|fim_middle|>", "<fim-middle>", "<fim_middle>",
    "<\uff5cfim\u2581end\uff5c>", "<MID>", "\u2581<MID>", "<|code_middle|>", "<|middle|>", "<|fim_pad|>", "<fim-pad>",
    "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>",
    "<|file_sep|>",
)

# Phi-3's special tokens swallow the white space behind them, except these.
_PHI3_WITHOUT_STRIPPING = ("<unk>", "<s>", "<|endoftext|>")


class GGUFVocabulary:
    """The token lists of ``tokenizer.ggml.*``, checked. ``ids`` is the inverse of ``tokens``."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self._metadata = metadata
        listed = metadata_list(metadata, "tokenizer.ggml.tokens")
        self.tokens: list[str] = [token or f"[EMPTY_{index}]" for index, token in enumerate(listed)]
        self.ids = {token: index for index, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            twice = next(token for index, token in enumerate(self.tokens) if self.ids[token] != index)
            raise CheckpointError(f"tokenizer.ggml.tokens holds {twice!r} more than once")
        self._types: Sequence[int] = [NORMAL] * len(self.tokens)
        if "tokenizer.ggml.token_type" in metadata:
            self._types = metadata_list(metadata, "tokenizer.ggml.token_type", len(self.tokens))

    def ids_of_type(self, *types: int) -> list[int]:
        """The ids of the tokens of these types, in order."""
        return [index for index, kind in enumerate(self._types) if kind in types]

    def special_id(self, name: str, default: int | None = None) -> int | None:
        """The id in ``tokenizer.ggml.{name}_token_id``; where the file has none, ``default`` if that is special."""
        key = f"tokenizer.ggml.{name}_token_id"
        if key not in self._metadata:
            if default is None or default >= len(self.tokens):
                return None
            return default if self._types[default] in (CONTROL, UNKNOWN) else None
        token_id = int(self._metadata[key])
        if not 0 <= token_id < len(self.tokens):
            raise CheckpointError(f"{key}={token_id} is outside the vocabulary of {len(self.tokens)} tokens")
        return token_id

    def end_ids(self) -> list[int]:
        """The ids of the tokens that end a generation by their text."""
        present = self._present(_END_TEXTS)
        # In the harmony format <|end|> closes a message and not the answer.
        harmony = "<|return|>" in self.ids and "<|call|>" in self.ids
        return [token_id for token_id in present if not (harmony and self.tokens[token_id] == "<|end|>")]

    def special_ids(self) -> set[int]:
        """The tokens that are no part of a text: control, unknown, and end tokens whatever the file calls them."""
        return {*self.ids_of_type(UNKNOWN, CONTROL), *self._present(_END_TEXTS)}

    def added_tokens(self) -> list[AddedToken]:
        """The tokens found in a text before anything else: always, or (``special``) where special tokens are parsed."""
        special = self.special_ids().union(self._present(_CONTROL_TEXTS))
        found = special.union(self.ids_of_type(USER_DEFINED))
        name = str(self._metadata.get("general.name", "")).lower()
        stripping = found if "phi-3" in name or "phi3" in name else set()
        stripping = stripping.difference(self._present(_PHI3_WITHOUT_STRIPPING))
        return [
            AddedToken(self.tokens[index], special=index in special, normalized=False, rstrip=index in stripping)
            for index in sorted(found)
        ]

    def _present(self, texts: Sequence[str]) -> list[int]:
        return [self.ids[text] for text in texts if text in self.ids]


def metadata_list(metadata: Mapping[str, Any], key: str, length: int | None = None) -> list[Any]:
    """The list at a key; ``CheckpointError`` if it is missing or not of the length given."""
    if key not in metadata:
        raise CheckpointError(f"the GGUF file has no {key}: it holds no usable tokenizer")
    values = metadata[key]
    # Readers give arrays of numbers as numpy arrays, whose elements are slow to take one by one.
    values = values.tolist() if hasattr(values, "tolist") else list(values)
    if length is not None and len(values) != length:
        raise CheckpointError(f"{key} has {len(values)} entries for {length} tokens")
    return values
