"""``jaxllm generate``: answer or complete prompts."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxllm.cli import console
from jaxllm.cli.options import Debug, EngineOptions, ModelOptions, Quiet, SamplingOptions
from jaxllm.cli.structure import StructureOptions
from jaxllm.errors import JaxLLMError, ParameterError
from jaxllm.outputs import CompletionOutput, RequestOutput

if TYPE_CHECKING:
    from jaxllm.tokenization import Tokenizer


def generate(
    model: ModelOptions,
    sampling: SamplingOptions,
    structure: StructureOptions,
    engine: EngineOptions,
    prompts: Annotated[list[str] | None, typer.Argument(
        metavar="PROMPT", show_default=False, help="By default, all of standard input is one prompt.")] = None,
    file: Annotated[Path | None, typer.Option(
        "--file", "-f", show_default=False, metavar="FILE",
        help="Read one prompt per line, empty lines left out; - is standard input.")] = None,
    system: Annotated[str | None, typer.Option("--system", show_default=False, help="The system message.")] = None,
    raw: Annotated[bool, typer.Option(
        "--raw", help="Complete the text as it is, without the model's chat template.")] = False,
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Samples per prompt.")] = 1,
    logprobs: Annotated[int | None, typer.Option(
        "--logprobs", min=0, show_default=False,
        help="With --json: log-probabilities of each token and of this many likely ones.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per sample and line.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Answer prompts through the model's chat template, or complete them as they are (--raw).

    One prompt's text is streamed. Exit code: 1 if a prompt failed, 130 after Ctrl-C, which keeps what is there.
    """
    console.set_up(quiet=quiet, debug=debug)
    if logprobs is not None and not as_json:
        raise typer.BadParameter("log-probabilities are only shown with --json", param_hint="--logprobs")
    if raw and system is not None:
        raise typer.BadParameter("it needs the chat template that --raw leaves out", param_hint="--system")
    structured_outputs = structure.params()
    sampling.check(structured_outputs=structured_outputs)
    texts = _read_prompts(prompts, file)

    from jaxllm.cli.startup import open_checkpoint, start, uncollected

    began = time.perf_counter()
    with uncollected():
        checkpoint = open_checkpoint(model)
        tokenizer = checkpoint.tokenizer
        as_chat = not raw and tokenizer.chat_template is not None
        if not raw and not as_chat:
            if system is not None:
                raise ParameterError("system", system, f"None, as {checkpoint.source.name} has no chat template")
            console.note("the model has no chat template: the text is completed as it is")
        requests = [_chat_prompt(tokenizer, text, system) if as_chat else text for text in texts]
        params = checkpoint.sampling_params(sampling, n).replace(
            logprobs=logprobs, structured_outputs=structured_outputs)
        llm = start(checkpoint, model, engine, num_seqs=n * len(texts), num_tokens=_count_tokens(tokenizer, requests),
                    params=params)
    console.note(f"{checkpoint.source.name} is ready after {time.perf_counter() - began:.1f} s")

    if len(texts) == 1 and n == 1 and not as_json:
        outputs = _stream(llm, requests[0], params)
    else:
        began = time.perf_counter()
        outputs = llm.generate(requests, params, use_tqdm=not quiet)
        seconds = time.perf_counter() - began
        for number, output in enumerate(outputs):
            for sample in output.outputs:
                if as_json:
                    print(json.dumps(_record(number, texts[number], output, sample), ensure_ascii=False))
                else:
                    _print_sample(number, sample, len(texts), n)
            if as_json and not output.outputs:
                print(json.dumps(_record(number, texts[number], output, None), ensure_ascii=False))
        sys.stdout.flush()
        count = sum(len(sample.token_ids) for output in outputs for sample in output.outputs)
        console.note(f"{count} tokens in {seconds:.1f} s, {count / seconds:.1f} tokens/s, "
                     f"{len(texts)} prompt{'' if len(texts) == 1 else 's'}")
    _exit(outputs, len(texts))


def _exit(outputs: list[RequestOutput], num_prompts: int) -> None:
    """Say which prompts failed, and end with the exit code that says so too."""
    from jaxllm.cli.streaming import was_interrupted

    failed = [(number, output.error) for number, output in enumerate(outputs) if output.error is not None]
    for number, error in failed:
        console.error((f"prompt {number + 1}: " if num_prompts > 1 else "") + error.message)
    if not outputs or any(was_interrupted(output) for output in outputs):
        raise typer.Exit(130)
    if failed:
        raise typer.Exit(1)


def _read_prompts(prompts: list[str] | None, file: Path | None) -> list[str]:
    if prompts and file is not None:
        raise typer.BadParameter("give prompts as arguments or a file of them, not both", param_hint="--file")
    if prompts:
        return prompts
    if file is not None:
        text = _decoded(sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes(), str(file))
        lines = [line for line in text.splitlines() if line.strip()]
        if not lines:
            raise typer.BadParameter(f"{file} holds no prompts", param_hint="--file")
        return lines
    if sys.stdin.isatty():
        raise typer.BadParameter("give one, or --file, or text on standard input", param_hint="PROMPT")
    # The newline that ends a text file is hardly ever meant.
    text = _decoded(sys.stdin.buffer.read(), "standard input").removesuffix("\n")
    if not text:
        raise typer.BadParameter("standard input is empty", param_hint="PROMPT")
    return [text]


def _decoded(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ParameterError("prompt", where, f"text in UTF-8 ({error.reason} at byte {error.start})") from None


def _chat_prompt(tokenizer: Tokenizer, text: str, system: str | None) -> dict[str, Any]:
    messages = [] if system is None else [{"role": "system", "content": system}]
    prompt = tokenizer.apply_chat_template([*messages, {"role": "user", "content": text}], tokenize=False)
    return {"prompt": prompt, "prompt_token_ids": tokenizer.encode_chat(prompt)}


def _count_tokens(tokenizer: Tokenizer, requests: list[Any]) -> int:
    """Tokens of the prompts that can be encoded; the others' errors come with their outputs."""
    count = 0
    for request in requests:
        try:
            count += len(tokenizer.encode(request) if isinstance(request, str) else request["prompt_token_ids"])
        except JaxLLMError:
            continue
    return count


def _stream(llm: Any, request: Any, params: Any) -> list[RequestOutput]:
    from jaxllm.cli.streaming import stream_text, summary

    output = stream_text(llm.stream(request, params), console.write)
    if output is None:
        return []
    console.write("\n")
    console.note(summary(output))
    return [output]


def _print_sample(number: int, sample: CompletionOutput, num_prompts: int, n: int) -> None:
    """A sample under a heading, as ``head`` prints several files."""
    names = [f"prompt {number + 1}"] if num_prompts > 1 else []
    names += [f"sample {sample.index + 1}"] if n > 1 else []
    console.write(console.bold(f"==> {', '.join(names)} <==", sys.stdout) + f"\n{sample.text}\n\n")


def _record(number: int, prompt: str, output: RequestOutput, sample: CompletionOutput | None) -> dict[str, Any]:
    """What ``--json`` prints: names as in ``RequestOutput`` and ``CompletionOutput``."""
    from jaxllm.batch.record import logprob_records
    from jaxllm.cli.streaming import tokens_per_second

    metrics = output.metrics
    record: dict[str, Any] = {"prompt_index": number, "prompt": prompt}
    if sample is not None:
        record |= {
            "index": sample.index, "text": sample.text, "token_ids": sample.token_ids,
            "finish_reason": sample.finish_reason, "stop_reason": sample.stop_reason, "seed": sample.seed,
        }
        if sample.logprobs is not None:
            record |= {"cumulative_logprob": sample.cumulative_logprob,
                       "logprobs": logprob_records(sample.token_ids, sample.logprobs)}
    record |= {"num_prompt_tokens": len(output.prompt_token_ids), "num_cached_tokens": output.num_cached_tokens}
    if metrics is not None:
        end = metrics.finished_time
        record["metrics"] = {
            "time_to_first_token": metrics.time_to_first_token,
            "total_time": None if end is None else end - metrics.arrival_time,
            "tokens_per_second": tokens_per_second(output),
            "num_preemptions": metrics.num_preemptions,
        }
    error = output.error
    record["error"] = None if error is None else {
        "type": error.type, "message": error.message, "parameter": error.parameter}
    return record
