"""``Conversation``: the messages of a chat, kept within the model's context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxllm.errors import CapacityError

if TYPE_CHECKING:
    from jaxllm.tokenization import Tokenizer


class Conversation:
    """A system message, maybe, and turns: a question and its answer each.

    context: tokens that a prompt and its answer have together. room: tokens that are kept free for an answer.
    """

    def __init__(self, tokenizer: Tokenizer, context: int, *, system: str | None = None, room: int | None = None
                 ) -> None:
        self.system = system
        self.turns: list[tuple[str, str]] = []
        self._tokenizer = tokenizer
        self._context = context
        self._room = min(context // 4 if room is None else room, context // 4)

    def prompt(self, question: str) -> tuple[dict[str, Any], int]:
        """The prompt that asks a question after all that was said, and how many of the oldest turns it forgot for that.

        Turns are forgotten when no room for an answer is left, and then until half of the context is free, so that not
        each further question moves the beginning, which the prefix cache knows, again.

        ``CapacityError`` if the question does not fit by itself; nothing is forgotten then.
        """
        kept = 0
        text, ids = self._render(question, kept)
        if len(ids) + self._room > self._context:
            while kept < len(self.turns) and len(ids) > self._context // 2:
                kept += 1
                text, ids = self._render(question, kept)
        if len(ids) >= self._context:
            raise CapacityError(f"the message is too long: with the system message it takes {len(ids)} tokens, and "
                                f"max_model_len={self._context} has to hold an answer too")
        del self.turns[:kept]
        return {"prompt": text, "prompt_token_ids": ids}, kept

    def add(self, question: str, answer: str) -> None:
        """Remember a turn."""
        self.turns.append((question, answer))

    def reset(self) -> None:
        """Forget all turns."""
        self.turns.clear()

    def _render(self, question: str, first: int) -> tuple[str, list[int]]:
        """The prompt without the turns before ``first``."""
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for asked, answered in self.turns[first:]:
            messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
        messages.append({"role": "user", "content": question})
        text = self._tokenizer.apply_chat_template(messages, tokenize=False)
        return text, self._tokenizer.encode_chat(text)
