"""``jaxllm batch``: the requests of a file, resumable."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxllm.cli import console
from jaxllm.cli.options import Debug, EngineOptions, ModelOptions, Quiet, SamplingOptions

if TYPE_CHECKING:
    from jaxllm.batch.job import BatchJob
    from jaxllm.batch.summary import BatchSummary

INTERRUPTED = 130
BYTES_PER_TOKEN = 4


def batch(
    model: ModelOptions,
    sampling: SamplingOptions,
    engine: EngineOptions,
    requests: Annotated[Path, typer.Argument(
        metavar="REQUESTS", show_default=False, exists=True, dir_okay=False, help="A JSONL file: a request per line.")],
    results: Annotated[Path, typer.Argument(
        metavar="RESULTS", show_default=False,
        help="The JSONL file that results are appended to; - is standard output, which cannot be resumed.")],
    n: Annotated[int, typer.Option("--n", "-n", min=1, help="Samples per prompt.")] = 1,
    logprobs: Annotated[int | None, typer.Option(
        "--logprobs", min=0, show_default=False,
        help="Log-probabilities of each token and of this many likely ones.")] = None,
    max_in_flight: Annotated[int | None, typer.Option(
        "--max-in-flight", min=1, show_default=False,
        help="Requests in the engine at once; by default 4 for each of --max-num-seqs.")] = None,
    resume: Annotated[bool, typer.Option(
        "--resume/--no-resume", help="Go on with a results file that holds results, or refuse it.")] = True,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Do requests that failed again.")] = False,
    model_name: Annotated[str | None, typer.Option(
        "--model-name", show_default=False,
        help="Refuse lines in OpenAI's form that name another model; by default any name will do.")] = None,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Run the requests of a JSONL file, each result on disk as soon as it is there.

    Options are what lines do not say themselves. The same command again takes up where a run ended, however it did.
    Exit code: 1 if a request failed, 130 after Ctrl-C.
    """
    console.set_up(quiet=quiet, debug=debug)
    sampling.check()

    from jaxllm.batch.job import BatchJob
    from jaxllm.cli.startup import open_checkpoint, uncollected

    began = time.perf_counter()
    with uncollected():
        checkpoint = open_checkpoint(model)
        defaults = checkpoint.sampling_params(sampling, n).replace(logprobs=logprobs)
    to: Any = sys.stdout.buffer if str(results) == "-" else results
    with BatchJob(requests, to, defaults, resume=resume, retry_failed=retry_failed) as job:
        if job.num_to_do == 0:
            _end(job.summary())
            return
        from jaxllm.batch.run import run_job
        from jaxllm.cli.startup import start

        with uncollected():
            llm = start(checkpoint, model, engine, num_seqs=n * job.num_to_do, num_tokens=_first_tokens(job),
                        params=defaults)
        console.note(f"{checkpoint.source.name} is ready after {time.perf_counter() - began:.1f} s")
        began = time.perf_counter()
        summary = run_job(llm, job, max_in_flight=max_in_flight, model_name=model_name, use_tqdm=not quiet)
    seconds = time.perf_counter() - began
    console.note(f"{summary.num_tokens} tokens in {seconds:.1f} s, {summary.num_tokens / seconds:.1f} tokens/s")
    _end(summary)


def _first_tokens(job: BatchJob) -> int:
    """Roughly how many tokens all prompts have; from the largest step on it makes no difference."""
    return Path(job.requests).stat().st_size // BYTES_PER_TOKEN + 1


def _end(summary: BatchSummary) -> None:
    """Say what came of the run, and end with the exit code that says so too."""
    console.note(str(summary))
    if summary.interrupted:
        raise typer.Exit(INTERRUPTED)
    if summary.failed or summary.failed_before:
        raise typer.Exit(1)
