"""``LLM``: the front door. Prompts in, outputs out, in the caller's own process."""

from __future__ import annotations

import collections
import inspect
import logging
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import numpy as np

from jaxllm.config import Policy
from jaxllm.engine.build import EngineSizes, build_engine
from jaxllm.engine.collector import Collector
from jaxllm.engine.core import Engine, Inbox
from jaxllm.engine.prompts import Prompt
from jaxllm.engine.stats import EngineStats
from jaxllm.errors import ParameterError
from jaxllm.interrupt import HeldInterrupts, InterruptFlag
from jaxllm.loading import FirstStep, end_token_ids, first_programs, load_weights, open_model, sampling_defaults
from jaxllm.outputs import OutputError, RequestOutput
from jaxllm.progress import ProgressBar
from jaxllm.sampling_params import SamplingParams
from jaxllm.tokenization import Tokenizer, load_tokenizer
from jaxllm.tokenization.chat import Message
from jaxllm.weights import GGUFSource, ModelSource, resolve

logger = logging.getLogger("jaxllm")

Params = SamplingParams | Sequence[SamplingParams] | None
Conversation = Sequence[Message]


class LLM:
    """A model with its tokenizer, cache and scheduler.

    model: hub id, local folder, ``.gguf`` file or packaged name (``jaxllm.weights.resolve``), or what that returns.
    tokenizer: where the tokenizer comes from, if not from the model: a folder, a ``.gguf`` file or a hub id; or the
        tokenizer itself.
    revision: branch, tag or commit of a hub model.
    dtype: of weights and activations: "bfloat16", "float16", "float32" or "auto", which takes bfloat16 where the
        hardware multiplies it natively. Norms, softmax, rotary tables, logits and sampling are float32 always.
    max_model_len: the most tokens of a prompt and its output; ``None`` takes the model's, or what fits.
    max_num_seqs: samples that run at once (default 64 on CPUs, 256 elsewhere).
    max_num_batched_tokens: tokens computed per step, ``>= 16`` (default 512 on CPUs, 8192 elsewhere).
    block_size: tokens per cache block (default 32 on CPUs, 64 elsewhere).
    kv_cache_bytes: bytes of the KV cache; ``None`` chooses by free memory (``jaxllm.config.plan_memory``).
    kv_cache_dtype: "auto" (as ``dtype``) or that dtype; others are refused.
    gpu_memory_utilization: share of an accelerator's memory that weights and cache may take.
    enable_prefix_caching: reuse the keys and values of prompt prefixes computed before.
    scheduling_policy: "fcfs" or "priority" (``SamplingParams.priority``, smaller first).
    max_logprobs: the most ``logprobs`` or ``prompt_logprobs`` that a request may ask for.
    first_step: what the first step will be, where that is known: its programs compile while the weights load.

    Raises ``ModelNotFoundError``, ``CheckpointError``, ``UnsupportedModelError``, ``CapacityError`` or
    ``ParameterError``, all ``ValueError``s, before memory is taken.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | ModelSource,
        *,
        tokenizer: str | os.PathLike[str] | Tokenizer | None = None,
        revision: str | None = None,
        dtype: Any = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        block_size: int | None = None,
        kv_cache_bytes: int | None = None,
        kv_cache_dtype: Any = "auto",
        gpu_memory_utilization: float = 0.9,
        enable_prefix_caching: bool = True,
        scheduling_policy: Policy = "fcfs",
        max_logprobs: int = 20,
        first_step: FirstStep | None = None,
    ) -> None:
        source = model if isinstance(model, ModelSource) else resolve(model, revision)
        sizes = EngineSizes(
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            kv_cache_bytes=kv_cache_bytes,
            kv_cache_dtype=kv_cache_dtype,
            gpu_memory_utilization=gpu_memory_utilization,
            enable_prefix_caching=enable_prefix_caching,
            scheduling_policy=scheduling_policy,
            max_logprobs=max_logprobs,
        )
        with ThreadPoolExecutor(1, "tokenizer") as pool:
            reading = pool.submit(_read_tokenizer, source, tokenizer)
            opened = open_model(source, dtype)
            self.tokenizer: Tokenizer = reading.result()
        self.engine: Engine = build_engine(
            opened.model,
            lambda: load_weights(source, opened),
            sizes,
            tokenizer=self.tokenizer,
            eos_token_ids=end_token_ids(source, self.tokenizer),
            compile_first=lambda programs: first_programs(programs, first_step or FirstStep()),
        )
        self.model_config = opened.model.config
        self._sampling_defaults = sampling_defaults(source)
        self._said: set[str] = set()

    def generate(self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None, *, use_tqdm: bool = True,
                 raise_on_error: bool = False) -> list[RequestOutput]:
        """Complete prompts; one output for each, in their order.

        prompts: a string, a list of token ids, ``{"prompt": ...}`` or ``{"prompt_token_ids": [...]}``, or a list of
            such.
        sampling_params: one for all, or one for each; ``None`` takes the model's own defaults.
        use_tqdm: show a progress bar, if standard error is a terminal or a notebook.
        raise_on_error: raise the first error of a prompt. By default a bad prompt's output carries its error
            (``RequestOutput.error``) and the others finish.

        Ctrl-C ends the unfinished requests (``finish_reason`` "abort") and returns; a second one raises.
        """
        prompts = _prompt_list(prompts)
        params = self._params_list(sampling_params, len(prompts))
        inbox: Inbox = collections.deque()
        outputs: list[RequestOutput | None] = [None] * len(prompts)
        numbers: dict[str, int] = {}
        interrupt = InterruptFlag()
        try:
            with interrupt.guard():
                for number, (prompt, wanted) in enumerate(zip(prompts, params, strict=True)):
                    try:
                        if isinstance(prompt, _Unusable):
                            raise prompt.error
                        self._add(prompt, wanted, number, numbers, inbox)
                    except Exception as error:
                        if raise_on_error:
                            raise
                        outputs[number] = _failed(prompt, number, error)
                with ProgressBar(sum(params[number].n for number in numbers.values()), shown=use_tqdm) as bar:
                    for collector in self._run(numbers, inbox, interrupt):
                        bar.update(collector)
                        if collector.request.finished:
                            outputs[numbers[collector.request.request_id]] = collector.output()
        except BaseException:
            self._abort(numbers)
            raise
        results = [output for output in outputs if output is not None]
        for output in results:
            if raise_on_error and output.error is not None:
                raise RuntimeError(f"{output.request_id} failed: {output.error.type}: {output.error.message}")
        return results

    def stream(self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None
               ) -> Generator[RequestOutput]:
        """Complete prompts, yielding a request's whole output so far each time it grows, the finished one last.

        The first bad prompt raises before anything runs. Leaving the iteration early aborts what is unfinished.
        """
        prompts = _prompt_list(prompts)
        params = self._params_list(sampling_params, len(prompts))
        inbox: Inbox = collections.deque()
        numbers: dict[str, int] = {}
        try:
            for number, (prompt, wanted) in enumerate(zip(prompts, params, strict=True)):
                self._add(prompt, wanted, number, numbers, inbox)
        except BaseException:
            self._abort(numbers)
            raise
        stream = self._stream(numbers, inbox)
        next(stream)  # a generator that never ran has no end to abort in
        return stream

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        use_tqdm: bool = True,
        raise_on_error: bool = False,
    ) -> list[RequestOutput]:
        """Answer conversations through the model's chat template; see ``Tokenizer.apply_chat_template``.

        messages: one conversation, ``[{"role": "user", "content": "..."}]``, or a list of them.
        """
        conversations = _conversation_list(messages)
        _check_template_kwargs(chat_template_kwargs)
        prompts: list[Any] = []
        for conversation in conversations:
            try:
                prompts.append(self.chat_prompt(
                    conversation, tools=tools, add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message, chat_template=chat_template,
                    **(chat_template_kwargs or {})))
            except ParameterError as error:
                if raise_on_error:
                    raise
                prompts.append(_Unusable(error))
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, raise_on_error=raise_on_error)

    def chat_prompt(self, messages: Conversation, **options: Any) -> dict[str, Any]:
        """The prompt that a conversation becomes: its text and its token ids, with exactly one BOS.

        options: those of ``Tokenizer.apply_chat_template``.
        """
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, **options)
        return {"prompt": text, "prompt_token_ids": self.tokenizer.encode_chat(text)}

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What ``generate`` uses when given no sampling parameters: the model's ``generation_config.json``, if any."""
        return self._sampling_defaults

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes."""
        self.engine.reset_prefix_cache()

    def stats(self) -> EngineStats:
        """The engine's load and totals."""
        return self.engine.stats()

    def warm_up(self) -> None:
        """Compile every program that any batch can need, instead of each at its first use."""
        self.engine.compile_all()

    def _add(self, prompt: Any, params: SamplingParams, number: int, numbers: dict[str, int], inbox: Inbox) -> None:
        with HeldInterrupts():  # a request whose id was not noted would run on for nobody
            numbers[self.engine.add_request(prompt, params, inbox=inbox)] = number

    def _stream(self, numbers: Mapping[str, int], inbox: Inbox) -> Generator[RequestOutput]:
        """Yields nothing of use the first time."""
        try:
            yield cast(RequestOutput, None)
            for collector in self._run(numbers, inbox, InterruptFlag()):
                yield collector.output()
        finally:
            self._abort(numbers)

    def _run(self, request_ids: Mapping[str, int], inbox: Inbox, interrupt: InterruptFlag) -> Iterator[Collector]:
        """Step until all requests are done, yielding each as it progresses; aborts what is left when interrupted."""
        unfinished = set(request_ids)
        try:
            while unfinished and not interrupt.is_set:
                with interrupt.guard():
                    self.engine.advance_until(inbox)
                while inbox:
                    collector = inbox.popleft()
                    if collector.request.finished:
                        unfinished.discard(collector.request.request_id)
                    yield collector
            if unfinished and len(request_ids) > 1:
                done, total = len(request_ids) - len(unfinished), len(request_ids)
                logger.warning("interrupted: %d of %d requests are finished, the others end here", done, total)
        except KeyboardInterrupt:
            if interrupt.is_set:
                raise  # the second one
            logger.warning("interrupted: unfinished requests end here")
        finally:
            self._abort(unfinished)
        yield from inbox

    def _abort(self, request_ids: Any) -> None:
        with HeldInterrupts():
            for request_id in list(request_ids):
                self.engine.abort(request_id)

    def _params_list(self, params: Params, count: int) -> list[SamplingParams]:
        if params is None:
            params = self._sampling_defaults
        if isinstance(params, SamplingParams):
            found = [params] * count
        elif isinstance(params, Sequence) and all(isinstance(each, SamplingParams) for each in params):
            found = list(params)
        else:
            raise ParameterError("sampling_params", params, "a SamplingParams, a list of them, or None")
        if len(found) != count:
            raise ParameterError("sampling_params", f"a list of {len(found)}", f"one for each of the {count} prompts")
        if any(each.n > 1 and each.greedy for each in found):
            self._say_once("greedy sampling with n > 1 gives n equal samples; set temperature above 0 to vary them")
        if any(each.max_tokens is None for each in found):
            self._say_once(f"max_tokens is not set: outputs may run to the end of the context, "
                           f"{self.engine.config.max_model_len} tokens")
        return found

    def _say_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            logger.warning(message)


class _Unusable:
    """Stands for a prompt that could not be made, so that the error takes the prompt's place among the outputs."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _conversation_list(messages: Any) -> list[Any]:
    """The conversations as a list: a list of messages is one conversation."""
    if isinstance(messages, str | bytes | Mapping) or not hasattr(messages, "__iter__"):
        raise ParameterError("messages", messages, "a list of messages, each a dict with 'role' and 'content', or a "
                             "list of such lists")
    found = list(messages)
    return [found] if found and isinstance(found[0], Mapping) else found


def _check_template_kwargs(variables: Any) -> None:
    if variables is None:
        return
    taken = {"messages", "tokenize", *inspect.signature(LLM.chat).parameters}
    allowed = "a mapping from names of template variables, other than the arguments of chat"
    if not isinstance(variables, Mapping) or any(not isinstance(name, str) or name in taken for name in variables):
        raise ParameterError("chat_template_kwargs", variables, allowed)


def _prompt_list(prompts: Any) -> list[Any]:
    """The prompts as a list: one prompt is a list of one, and a flat list of integers is one prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not hasattr(prompts, "__iter__") or isinstance(prompts, bytes) or getattr(prompts, "ndim", 1) == 0:
        raise ParameterError("prompts", prompts, "a prompt (a string, token ids or a mapping) or a list of prompts")
    if hasattr(prompts, "__array__"):  # also JAX's, whose rows are slow to take one by one
        prompts = np.asarray(prompts)
        return [prompts] if prompts.ndim == 1 and prompts.dtype.kind in "iu" else list(prompts)
    found = list(prompts)
    if found and all(_is_token_id(item) for item in found):
        return [found]
    return found


def _is_token_id(item: Any) -> bool:
    # Every array has __index__, whatever its shape.
    return hasattr(item, "__index__") and not isinstance(item, bool) and getattr(item, "ndim", 0) == 0


def _failed(prompt: Any, number: int, error: Exception) -> RequestOutput:
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else prompt
    return RequestOutput(
        request_id=f"prompt-{number}",
        prompt=text if isinstance(text, str) else None,
        prompt_token_ids=[],
        outputs=[],
        error=OutputError(type(error).__name__, str(error), getattr(error, "parameter", None)),
    )


def _read_tokenizer(source: ModelSource, tokenizer: str | os.PathLike[str] | Tokenizer | None) -> Tokenizer:
    if isinstance(tokenizer, Tokenizer):
        return tokenizer
    if tokenizer is not None:
        source = resolve(tokenizer)
    return load_tokenizer(source.metadata if isinstance(source, GGUFSource) else source.path)
