"""``BeamEndings``: which candidates of a beam search are finished by their tokens or their text."""

from __future__ import annotations

import dataclasses

from jaxllm.engine.beam import Beam, Ending
from jaxllm.engine.request import Request
from jaxllm.engine.stopping import stop_reason_of
from jaxllm.tokenization import StopChecker, Tokenizer
from jaxllm.tokenization.assembler import TextAssembler


@dataclasses.dataclass(frozen=True, slots=True)
class BeamText:
    """The text of a beam in the making, of which children take copies."""

    assembler: TextAssembler
    stops: StopChecker

    def copy(self) -> BeamText:
        """One that goes on from here on its own."""
        return BeamText(self.assembler.copy(), self.stops.copy())

    def push(self, token_ids: list[int]) -> str:
        """Add tokens; the text that can be shown for them."""
        return self.stops.feed(self.assembler.push(token_ids))

    def finish(self) -> str:
        """End the text; the rest that can be shown."""
        return self.stops.feed(self.assembler.finish()) + self.stops.finish()


def new_text(tokenizer: Tokenizer, stop_strings: tuple[str, ...], *, include_stop_str_in_output: bool) -> BeamText:
    """The text of an output that has no token yet."""
    assembler = tokenizer.assembler(skip_special_tokens=True, spaces_between_special_tokens=True)
    return BeamText(assembler, StopChecker(stop_strings, include_stop_str_in_output=include_stop_str_in_output))


class BeamEndings:
    """Says of each candidate, step by step, whether it is finished; a ``BeamSelector``'s ``ends``.

    The same rules as for samples: an end-of-sequence or stop id comes before a stop string, and that before the length.
    As with Hugging Face's ``StopStringCriteria``, a stop string finishes the candidate whose last token completes it.
    """

    def __init__(self, request: Request, tokenizer: Tokenizer | None, stop_strings: tuple[str, ...]) -> None:
        self._request = request
        self._empty: BeamText | None = None
        if tokenizer is not None and stop_strings:
            self._empty = new_text(tokenizer, stop_strings, include_stop_str_in_output=False)
        # The texts of the running beams, and of the candidates to take their place.
        self._texts: dict[Beam, BeamText] = {}
        self._next_texts: dict[Beam, BeamText] = {}
        self._length = 1

    def __call__(self, beam: Beam) -> Ending | None:
        request = self._request
        if beam.token in request.stop_ids:
            return Ending("stop", stop_reason_of(request, beam.token))
        if self._empty is None:
            return None
        if beam.length > self._length:
            self._texts, self._next_texts, self._length = self._next_texts, {}, beam.length
        text = self._texts.get(beam.parent, self._empty).copy() if beam.parent is not None else self._empty.copy()
        text.push([beam.token])
        if beam.length == request.max_tokens:
            text.finish()
        self._next_texts[beam] = text
        return None if text.stops.stop_string is None else Ending("stop", text.stops.stop_string)
