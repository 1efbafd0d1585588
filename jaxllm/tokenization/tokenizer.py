"""``Tokenizer``: text to token ids and back, the same surface whatever file it came from."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, overload

import tokenizers

from jaxllm.checks import check_unicode
from jaxllm.errors import ParameterError
from jaxllm.tokenization.assembler import TextAssembler
from jaxllm.tokenization.chat import ChatTemplates, Message
from jaxllm.tokenization.pieces import DecodeRules, Pieces


class Tokenizer:
    """A ``tokenizers.Tokenizer`` with its special tokens and chat template. Safe to use from several threads.

    bos_token_id, eos_token_id, pad_token_id: ``None`` where the model has none.
    eos_token_ids: every id that ends a generation, ``eos_token_id`` first.
    special_token_ids: the ids that ``skip_special_tokens`` leaves out.
    unused_token_ids: ids below ``vocab_size`` that stand for no text; a sampler should never choose them.
    vocab_size: one more than the largest id with a token; a model's output may be padded beyond it.
    pieces: what each token contributes to a text; cleans_up_spaces: whether spaces before punctuation are then removed.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_ids: Sequence[int] = (),
        pad_token_id: int | None = None,
        special_token_ids: Collection[int] | None = None,
        special_tokens: Mapping[str, str] = MappingProxyType({}),
        chat_template: str | Mapping[str, str] | None = None,
        unused_token_ids: Collection[int] = (),
        clean_up_tokenization_spaces: bool = False,
    ) -> None:
        """``special_token_ids`` default to those that the backend marks special; ``special_tokens`` are the variables,
        such as ``bos_token``, that chat templates see.
        """
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        size_without_added = backend.get_vocab_size(with_added_tokens=False)
        self.backend = backend
        self.bos_token_id = bos_token_id
        self.eos_token_ids = tuple(dict.fromkeys(eos_token_ids))
        self.eos_token_id = self.eos_token_ids[0] if self.eos_token_ids else None
        self.pad_token_id = pad_token_id
        self.special_tokens = dict(special_tokens)
        if special_token_ids is None:
            special_token_ids = [token_id for token_id, token in added.items() if token.special]
        self.special_token_ids = frozenset(special_token_ids)
        self.vocab_size = max([size_without_added, *(token_id + 1 for token_id in added)])
        holes = set(range(size_without_added, self.vocab_size)).difference(added)
        self.unused_token_ids = frozenset(unused_token_ids) | holes
        self.pieces = Pieces(backend, DecodeRules.from_backend(backend), added)
        self._added_ids = frozenset(added)
        self.cleans_up_spaces = clean_up_tokenization_spaces
        self._templates = ChatTemplates(chat_template, self.special_tokens)
        # parse_special is a setting of the backend, not an argument of its encode.
        self._encode_lock = threading.Lock()
        self._adds_bos = bos_token_id is not None and backend.encode("").ids[:1] == [bos_token_id]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_encode_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _encode_lock=threading.Lock())

    def __deepcopy__(self, memo: dict[int, Any]) -> Tokenizer:
        return self  # outputs refer to it; nothing about it changes

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template used when none is named, ``None`` when the model has none."""
        return self._templates.default

    @property
    def chat_templates(self) -> dict[str, str]:
        """The sources of the model's chat templates by name; one alone is "default"."""
        return self._templates.by_name

    @property
    def template_names(self) -> tuple[str, ...]:
        """The names of the model's chat templates; one alone is "default"."""
        return self._templates.names

    def encode(self, text: str, *, add_special_tokens: bool = True, parse_special: bool = True) -> list[int]:
        """The token ids of a text.

        add_special_tokens: add BOS and EOS where the model asks for them. A text that spells BOS at its start
            gets no second one.
        parse_special: special tokens spelled out in the text become those tokens; else they are plain text.
        """
        _check_text(text)
        with self._encode_lock:
            self.backend.encode_special_tokens = not parse_special
            ids = self.backend.encode(text, add_special_tokens=add_special_tokens).ids
        return self._with_one_bos(ids) if add_special_tokens else ids

    def encode_batch(
        self, texts: Sequence[str], *, add_special_tokens: bool = True, parse_special: bool = True
    ) -> list[list[int]]:
        """``encode`` of each text, in parallel."""
        for text in texts:
            _check_text(text)
        with self._encode_lock:
            self.backend.encode_special_tokens = not parse_special
            encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [self._with_one_bos(encoding.ids) if add_special_tokens else encoding.ids for encoding in encodings]

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int] | None]]:
        """``encode(text)``, and for each token the characters of the text that it stands for, ``(start, end)``.

        ``None`` for BOS and EOS that the tokenizer adds. The tokens of a character in pieces all have its span; spaces
        at the beginning of a token may be missing from its span, its end never is.
        """
        _check_text(text)
        with self._encode_lock:
            self.backend.encode_special_tokens = False
            encoding = self.backend.encode(text)
        ids = self._with_one_bos(encoding.ids)
        pairs = zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
        spans = [None if added else span for span, added in pairs]
        return ids, spans[len(spans) - len(ids):]

    def _with_one_bos(self, ids: list[int]) -> list[int]:
        """Without the BOS that was added before a text that spells one itself."""
        return ids[1:] if self._adds_bos and ids[:2] == [self.bos_token_id, self.bos_token_id] else ids

    def decode(
        self, ids: Sequence[int], *, skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> str:
        """The text of token ids. Ids without a token give no text.

        Bytes that are not UTF-8 become U+FFFD, one for each maximal invalid sequence, an incomplete character at the
        end included.
        spaces_between_special_tokens: keep the spaces that the tokenizer's own decoder puts between neighbouring
            special or added tokens. Only tokenizers that join words have any.
        """
        for token_id in ids:
            if isinstance(token_id, bool) or not hasattr(token_id, "__index__") or token_id < 0:
                raise ParameterError("ids", token_id, "token ids are integers >= 0")
        assembler = self.assembler(
            skip_special_tokens=skip_special_tokens, spaces_between_special_tokens=spaces_between_special_tokens
        )
        return assembler.push(ids) + assembler.finish()

    def assembler(self, *, skip_special_tokens: bool, spaces_between_special_tokens: bool) -> TextAssembler:
        """A fresh decoder of one text; ``decode`` and ``IncrementalDetokenizer`` are made of it."""
        return TextAssembler(
            self.pieces,
            skipped_ids=self.special_token_ids if skip_special_tokens else (),
            joined_ids=() if spaces_between_special_tokens else self._added_ids,
            clean_up_spaces=self.cleans_up_spaces,
        )

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds inside a text, its leading space included; empty for an id without a token."""
        return self.pieces.inner(token_id) or b""

    def token_text(self, token_id: int) -> str:
        r"""One token as text, to be shown by itself: special tokens are spelled out, a leading space is kept.

        A byte that is not valid UTF-8 by itself is shown as ``\xNN``, so that no two tokens look like the same U+FFFD;
        ``token_bytes`` has the bytes.
        """
        return self.token_bytes(token_id).decode("utf-8", errors="backslashreplace")

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = ...,
        add_generation_prompt: bool = ...,
        continue_final_message: bool = ...,
        chat_template: str | None = ...,
        tokenize: Literal[True] = ...,
        **chat_template_kwargs: Any,
    ) -> list[int]: ...

    @overload
    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = ...,
        add_generation_prompt: bool = ...,
        continue_final_message: bool = ...,
        chat_template: str | None = ...,
        tokenize: Literal[False],
        **chat_template_kwargs: Any,
    ) -> str: ...

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        tokenize: bool = True,
        **chat_template_kwargs: Any,
    ) -> list[int] | str:
        """The prompt that the model's chat template makes of messages, as token ids or (``tokenize=False``) as text.

        messages: ``{"role": ..., "content": ...}`` each; the content a string or a list of
            ``{"type": "text", "text": ...}`` parts.
        tools: JSON schemas of functions.
        add_generation_prompt: end with the opening of an assistant message.
        continue_final_message: leave the last message open, for the model to continue; needs
            ``add_generation_prompt=False``.
        chat_template: the name of one of the model's templates, or the source of another.
        chat_template_kwargs: further variables for the template.

        The ids begin with exactly one BOS where the model uses one, whether the template writes it or not.
        Raises ``ParameterError`` naming what the template refuses.
        """
        text = self._templates.render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template=chat_template,
            variables=chat_template_kwargs,
        )
        return self.encode_chat(text) if tokenize else text

    def encode_chat(self, text: str) -> list[int]:
        """The token ids of a text that a chat template wrote: exactly one BOS where the model uses one."""
        ids = self.encode(text, add_special_tokens=False)
        if self._adds_bos and self.bos_token_id is not None and ids[:1] != [self.bos_token_id]:
            ids.insert(0, self.bos_token_id)
        return ids


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise ParameterError("text", text, "a string")
    check_unicode("text", text)
