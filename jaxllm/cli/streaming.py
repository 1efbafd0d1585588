"""One answer as it grows, and what is said about it afterwards."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator

from jaxllm.interrupt import InterruptFlag
from jaxllm.outputs import CompletionOutput, RequestOutput


def stream_text(outputs: Generator[RequestOutput], write: Callable[[str], None]) -> RequestOutput | None:
    """Write the first sample's text as it grows; the last output, or ``None`` if there was none.

    Ctrl-C ends the request, and only that: the last output is then "abort" or unfinished.
    """
    # Ctrl-C between two steps, while text is written, must not raise there either.
    interrupt = InterruptFlag()
    shown, last = 0, None
    with contextlib.closing(outputs), interrupt.guard():
        for last in outputs:
            text = last.outputs[0].text if last.outputs else ""
            if len(text) > shown:
                write(text[shown:])
                shown = len(text)
            if interrupt.is_set:
                break
    return last


def was_interrupted(output: RequestOutput | None) -> bool:
    """Whether a streamed answer was cut short by Ctrl-C."""
    if output is None:
        return True
    return output.error is None and any(sample.finish_reason in (None, "abort") for sample in output.outputs)


def tokens_per_second(output: RequestOutput) -> float | None:
    """Decoding speed over all samples, the first step left out; ``None`` if there was nothing after it."""
    metrics = output.metrics
    later = sum(max(len(sample.token_ids) - 1, 0) for sample in output.outputs)
    if metrics is None or metrics.first_token_time is None or metrics.finished_time is None or later == 0:
        return None
    seconds = metrics.finished_time - metrics.first_token_time
    return later / seconds if seconds > 0 else None


def summary(output: RequestOutput) -> str:
    """Timings and the end of a request, in a line."""
    parts = []
    first = None if output.metrics is None else output.metrics.time_to_first_token
    if first is not None:
        parts.append(f"TTFT {first:.2f} s")
    speed = tokens_per_second(output)
    if speed is not None:
        parts.append(f"{speed:.1f} tokens/s")
    count = sum(len(sample.token_ids) for sample in output.outputs)
    parts.append(f"{count} token{'' if count == 1 else 's'}")
    if output.num_cached_tokens:
        parts.append(f"{output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens from the cache")
    ends = dict.fromkeys(_end(sample) for sample in output.outputs)
    return ", ".join([*parts, f"finish: {', '.join(ends)}"])


def _end(sample: CompletionOutput) -> str:
    reason = sample.finish_reason or "abort"
    return reason if sample.stop_reason is None else f"{reason} at {sample.stop_reason!r}"
