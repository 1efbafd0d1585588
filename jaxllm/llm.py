"""``LLM``: the front door. Prompts in, outputs out, in the caller's own process."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NoReturn

import jax

from jaxllm.arguments import BEAM_SEARCH_ARGUMENTS, CHAT_ARGUMENTS, ENGINE_ARGUMENTS, GENERATE_ARGUMENTS
from jaxllm.arguments.methods import missing_attribute
from jaxllm.beam_search import BeamSearchOutput, BeamSearchParams, as_search_output, search_params_list
from jaxllm.chat_prompts import ChatPrompts, Conversation
from jaxllm.checks import check_bool, refuse_given
from jaxllm.config import Policy
from jaxllm.engine.build import build_engine
from jaxllm.engine.core import Engine
from jaxllm.engine.prompts import Prompt
from jaxllm.engine.sizes import EngineSizes
from jaxllm.engine.stats import EngineStats
from jaxllm.engine.stats_log import StatsLog
from jaxllm.environment import check_environment
from jaxllm.first_step import FirstStep
from jaxllm.generation_config import end_token_ids, sampling_defaults
from jaxllm.inputs import Params, prompt_list, with_priorities
from jaxllm.loading import (
    check_pooling,
    live_source,
    load_placed,
    open_model,
    open_source,
    random_weights,
    read_tokenizer,
    score_head,
)
from jaxllm.memory import give_back_memory
from jaxllm.origin import Origin
from jaxllm.outputs import RequestOutput
from jaxllm.parallel.mesh import chosen_mesh
from jaxllm.parallel.pipeline import first_here, replica_partitions
from jaxllm.pooling import EmbeddingRequestOutput, RewardRequestOutput, embed, reward
from jaxllm.progress import Bar
from jaxllm.quantities import parse_gibibytes
from jaxllm.request_batch import complete, stream
from jaxllm.request_defaults import RequestDefaults
from jaxllm.sampling import LogitsProcessor
from jaxllm.sampling_params import LogprobsMode, SamplingParams
from jaxllm.scoring import Score, Text, score
from jaxllm.tokenization import Tokenizer
from jaxllm.weights import ModelSource
from jaxllm.weights.quantization import check_quantization


class LLM:
    """A model with its tokenizer, cache and scheduler.

    Names and meanings are those of vLLM's ``LLM``. Those of its arguments that are not listed here are accepted at
    values that ask for nothing special, and raise ``ParameterError`` with what to do instead at others
    (docs/coming-from-vllm.md has the table).

    model: hub id, local folder, ``.gguf`` file or packaged name (``jaxllm.weights.resolve``), or what that returns.
    tokenizer: where the tokenizer comes from, if not from the model: a folder, a ``.gguf`` file or a hub id; or the
        tokenizer itself.
    tokenizer_revision: branch, tag or commit of the tokenizer's hub repository.
    skip_tokenizer_init: have no tokenizer: prompts are token ids, and outputs have no text.
    chat_template: what ``chat`` uses by default instead of the model's: a template's source, its name, or its file.
    revision: branch, tag or commit of a hub model.
    load_format: "auto"; "safetensors" or "gguf", which refuse the other; or "dummy", which takes random weights.
    dtype: of weights and activations: "bfloat16", "float16" ("half"), "float32" ("float") or "auto", which takes
        bfloat16 where the hardware multiplies it natively. Norms, softmax, rotary tables, logits and sampling are
        float32 always.
    quantization: "none" decodes quantized matrices on loading; "gguf" keeps them as a ``.gguf`` file stores them and
        computes with their blocks, for the same outputs from less memory; "gguf-a8" does so with activations rounded to
        8 bits, each 32 by a factor of their own, as llama.cpp does on CPUs: faster, and not the same; "int8" makes
        8-bit matrices of any checkpoint while it is loaded, each row with a factor of its own, and computes with
        activations of 16 bits. ``None`` is "int8" for checkpoints that are stored so (``jaxllm.quantize`` writes them),
        "none" for others.
    data_parallel_size: replicas of the model in this engine, each on a device of its own, with a cache and a scheduler
        of its own: all sizes that follow are those of each replica. A request goes to the replica that has the longest
        beginning of its prompt cached, unless others have less to do, and has the same outputs on any.
    pipeline_parallel_size: stages that the layers of each replica are cut into, of about equal bytes, each on a device
        of its own, which holds its layers' weights and cache alone. As many steps are on their way at once, which share
        ``max_num_batched_tokens`` and have different requests: it takes as many as there are stages to keep all busy.
    seed: what the seeds of requests without one derive from, together with their order of arrival: the same calls then
        give the same outputs in every run. ``None`` draws them from the operating system.
    max_model_len: the most tokens of a prompt and its output, also as "8k" (8,000) or "8K" (8,192); ``None``, "auto"
        or -1 take the model's, or what fits.
    max_num_seqs: samples that run at once (default 64 on CPUs, 256 elsewhere), at most 65,536.
    max_num_batched_tokens: tokens computed per step, ``>= 16`` (default 512 on CPUs, 8192 elsewhere).
    block_size: tokens per cache block (default 32 on CPUs, 64 elsewhere).
    kv_cache_bytes: bytes of the KV cache, also as "512M" or "16G"; ``None`` chooses by free memory
        (``jaxllm.config.plan_memory``). ``kv_cache_memory_bytes`` is the same under vLLM's name.
    kv_cache_dtype: "auto" (as ``dtype``), that dtype, or "int8" or "fp8" (e4m3): keys and values in bytes, each token's
        with a scale per kv head, half the memory of bfloat16 and half of what attention reads; others are refused.
    gpu_memory_utilization: share of an accelerator's memory that weights and cache may take.
    swap_space: host memory for what preempted requests have computed: a number of GiB, or "512M" or "16G"; without,
        they are computed anew.
    enable_prefix_caching: reuse the keys and values of prompt prefixes computed before.
    scheduling_policy: "fcfs" or "priority" (``SamplingParams.priority``, smaller first).
    max_logprobs: the most ``logprobs`` or ``prompt_logprobs`` that a request may ask for; -1 allows the vocabulary.
    logprobs_mode: what requests report that do not say it: "raw_logprobs" or "processed_logprobs" (``SamplingParams``).
    logits_processors: JAX functions ``(logits, state) -> logits`` by name, for requests to choose from.
    overlap: plan and dispatch each step while the one before it runs; without, one step is done before the next is
        planned. Outputs are the same.
    deterministic: outputs are the same bits in any batch on a GPU too, by kernels that add up in one order, at some
        cost in speed. On CPUs they always are, and this changes nothing. Refused for what there are no such kernels.
    speculative_config: guess tokens ahead from earlier occurrences of the last ones, where that pays; outputs are the
        same to the bit. "auto" does so on CPUs, ``None`` never; {"method": "ngram", "num_speculative_tokens": 31,
        "prompt_lookup_max": 4, "prompt_lookup_min": 2} are the defaults, and all that there is.
    generation_config: where the default sampling parameters come from: "auto", the model's
        ``generation_config.json``; "vllm", nowhere; or a folder with such a file.
    override_generation_config: entries of such a file that come on top.
    disable_log_stats: ``False`` logs a line of figures every 10 s while requests run (logger ``jaxllm.stats``).
    first_step: what the first step will be, where that is known: its programs compile while the weights load.
    tensor_parallel_size: devices that share every layer, each with a part of the weights and of the KV cache, whose
        sizes are then those of each device. Outputs are the same but for the order of sums (docs/parallelism.md).
    enable_expert_parallel: of mixtures of experts, give each of these devices whole ones, in place of a part of each;
        of several replicas without pipelines, each device has some that the others have not, and all take their steps
        together (docs/parallelism.md).
    mesh: the devices, in place of the three sizes: a ``jax.sharding.Mesh``, such as a trainer's, whose axes
        have names that say what they are for ("tensor", "tp", "model", ...: ``jaxllm.parallel.AXIS_RULES``).

    Raises ``ModelNotFoundError``, ``CheckpointError``, ``UnsupportedModelError``, ``CapacityError`` or
    ``ParameterError``, all ``ValueError``s, before memory is taken; the last also for a misspelt variable of the
    environment (``JAXLLM_...``).
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | ModelSource,
        *,
        tokenizer: str | os.PathLike[str] | Tokenizer | None = None,
        tokenizer_revision: str | None = None,
        skip_tokenizer_init: bool = False,
        chat_template: str | os.PathLike[str] | None = None,
        revision: str | None = None,
        load_format: str = "auto",
        dtype: Any = "auto",
        quantization: str | None = None,
        data_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        seed: int | None = None,
        max_model_len: int | str | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        block_size: int | None = None,
        kv_cache_bytes: int | str | None = None,
        kv_cache_memory_bytes: int | str | None = None,
        kv_cache_dtype: Any = "auto",
        gpu_memory_utilization: float = 0.9,
        swap_space: float | str | None = None,
        enable_prefix_caching: bool | None = None,
        scheduling_policy: Policy = "fcfs",
        max_logprobs: int = 20,
        logprobs_mode: LogprobsMode = "raw_logprobs",
        logits_processors: Mapping[str, LogitsProcessor] | None = None,
        overlap: bool = True,
        deterministic: bool = False,
        speculative_config: Mapping[str, Any] | str | None = "auto",
        generation_config: str | os.PathLike[str] = "auto",
        override_generation_config: Mapping[str, Any] | None = None,
        disable_log_stats: bool = True,
        first_step: FirstStep | None = None,
        tensor_parallel_size: int = 1,
        enable_expert_parallel: bool = False,
        mesh: jax.sharding.Mesh | None = None,
        **others: Any,
    ) -> None:
        ENGINE_ARGUMENTS.check(others)
        check_environment()
        check_bool("skip_tokenizer_init", skip_tokenizer_init)
        check_bool("disable_log_stats", disable_log_stats)
        check_bool("enable_expert_parallel", enable_expert_parallel)
        devices = chosen_mesh(mesh, data_parallel_size=data_parallel_size, tensor_parallel_size=tensor_parallel_size,
                              pipeline_parallel_size=pipeline_parallel_size)
        if skip_tokenizer_init:
            refuse_given("None with skip_tokenizer_init", tokenizer=tokenizer, tokenizer_revision=tokenizer_revision)
        expected = FirstStep.given(first_step)
        sizes = EngineSizes(
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_size=block_size,
            kv_cache_bytes=kv_cache_bytes,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            kv_cache_dtype=kv_cache_dtype,
            gpu_memory_utilization=gpu_memory_utilization,
            swap_bytes=0 if swap_space is None else parse_gibibytes("swap_space", swap_space),
            enable_prefix_caching=True if enable_prefix_caching is None else enable_prefix_caching,
            scheduling_policy=scheduling_policy,
            max_logprobs=max_logprobs,
            logprobs_mode=logprobs_mode,
            seed=seed,
            logits_processors=logits_processors,
            overlap=overlap,
            deterministic=deterministic,
            speculative_config=speculative_config,
        )
        check_quantization(quantization)
        source = open_source(model, revision, load_format)
        defaults = sampling_defaults(source, generation_config, override_generation_config)
        has_weights = load_format != "dummy"
        with ThreadPoolExecutor(1, "tokenizer") as pool:
            chosen: Any = model if tokenizer is None and tokenizer_revision is not None else tokenizer
            reading = None if skip_tokenizer_init else pool.submit(read_tokenizer, source, chosen, tokenizer_revision)
            opened = open_model(source, dtype, quantization=quantization, has_weights=has_weights)
            self.tokenizer: Tokenizer | None = None if reading is None else reading.result()
        replicas = replica_partitions(opened.model, devices, by_expert=enable_expert_parallel)
        self._chats = ChatPrompts(self.tokenizer, chat_template)
        self.engine: Engine = build_engine(
            opened.model,
            lambda: (load_placed if has_weights else random_weights)(source, opened, first_here(replicas)),
            sizes,
            partition=replicas,
            tokenizer=self.tokenizer,
            eos_token_ids=end_token_ids(source, self.tokenizer, generation_config),
            compile_first=expected.keys,
            stats_log=None if disable_log_stats else StatsLog(),
            weights_in_place=opened.in_place and devices is None,
            generates=opened.head == "language model",
        )
        self._score_head = score_head(source, opened)
        self._path = source.path
        is_chosen = tokenizer is not None or tokenizer_revision is not None
        self._origin = Origin.of(source, opened, self.tokenizer if is_chosen else None, has_weights=has_weights)
        give_back_memory()
        self.model_config = opened.model.config
        self._defaults = RequestDefaults(defaults, self.engine.config.max_model_len)

    @classmethod
    def from_params(cls, config: Any, params: Any, tokenizer: str | os.PathLike[str] | Tokenizer | None = None, *,
                    mesh: jax.sharding.Mesh | None = None, **arguments: Any) -> LLM:
        """An ``LLM`` on parameters in memory, which are used where they are; ``update_params`` gives it newer ones.

        config: a Hugging Face config as a dict or as the path of a ``config.json``; a folder, hub id or packaged name
            that has one; or a ``DecoderConfig``.
        params: a nested dict, an ``nnx.State`` or a flat dict by name (docs/live-parameters.md): in the layout of
            ``llm.engine.params``; in that with its layers stacked; or with Hugging Face's names, where the parts of
            fused matrices stay apart.
        tokenizer: as for ``LLM``; without one, prompts are token ids.
        mesh: that of parameters which lie on several devices. Those that lie as the engine's do stay where they are:
            matrices of queries, keys and values, and of gates and up, by their rows, those that follow them by their
            columns; others are moved.
        arguments: ``LLM``'s, but those that say where a checkpoint is. With ``dtype="auto"`` the dtype is the one that
            all of ``params`` have; with another than theirs they are converted, which copies them.

        Raises ``ParameterError`` listing everything in ``params`` that does not fit ``config``.
        """
        refuse_given("an argument of LLM(...) alone, which reads a checkpoint", **{
            name: arguments.pop(name, None) for name in ("model", "revision", "load_format", "skip_tokenizer_init")})
        sizes = {name: arguments[name] for name in (
            "data_parallel_size", "pipeline_parallel_size", "tensor_parallel_size") if name in arguments}
        spread = chosen_mesh(mesh, **sizes) is not None
        return cls(live_source(config, params, spread=spread), tokenizer=tokenizer,
                   skip_tokenizer_init=tokenizer is None, mesh=mesh, **arguments)

    def generate(self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None, *, use_tqdm: Bar = True,
                 priority: Sequence[int] | None = None, raise_on_error: bool = False, **others: Any
                 ) -> list[RequestOutput]:
        """Complete prompts; one output for each, in their order.

        prompts: a string, a list of token ids, ``{"prompt": ...}`` or ``{"prompt_token_ids": [...]}``, or a list of
            such.
        sampling_params: one for all, or one for each; ``None`` takes the model's own defaults.
        use_tqdm: show a progress bar, if standard error is a terminal or a notebook; or what makes the bar, a callable
            with the arguments of ``tqdm``.
        priority: one for each prompt, in place of ``SamplingParams.priority``.
        raise_on_error: raise the first error. A bad prompt raises what is wrong with it (mostly ``ParameterError``)
            before anything runs; a request that fails later, ``RequestError`` with its output. By default a bad
            prompt's output carries its error (``RequestOutput.error``) and the others finish.

        Ctrl-C ends the unfinished requests (``finish_reason`` "abort") and returns; a second one raises. vLLM's other
        arguments raise ``ParameterError`` with what to do instead.
        """
        GENERATE_ARGUMENTS.check(others)
        prompts = prompt_list(prompts)
        params = with_priorities(
            self._defaults.of_prompts(sampling_params, len(prompts)), priority, self.engine.config.scheduling_policy)
        return complete(self.engine, prompts, params, use_tqdm=use_tqdm, raise_on_error=raise_on_error)

    def stream(self, prompts: Prompt | Sequence[Prompt], sampling_params: Params = None
               ) -> Generator[RequestOutput]:
        """Complete prompts, yielding a request's whole output so far each time it grows, the finished one last.

        The first bad prompt raises before anything runs. Leaving the iteration early aborts what is unfinished.
        """
        prompts = prompt_list(prompts)
        return stream(self.engine, prompts, self._defaults.of_prompts(sampling_params, len(prompts)))

    def beam_search(self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams | Sequence[BeamSearchParams], *,
                    use_tqdm: Bar = False, raise_on_error: bool = False, **others: Any) -> list[BeamSearchOutput]:
        """Search for the most likely outputs of prompts; one output for each, in their order.

        params: one for all, or one for each. The other arguments, errors and Ctrl-C are as in ``generate``.
        """
        BEAM_SEARCH_ARGUMENTS.check(others)
        prompts = prompt_list(prompts)
        wanted = search_params_list(params, len(prompts))
        outputs = complete(self.engine, prompts, wanted, use_tqdm=use_tqdm, raise_on_error=raise_on_error)
        return [as_search_output(output) for output in outputs]

    def score(self, contexts: Sequence[Text], continuations: Sequence[Text], *, use_tqdm: Bar = True) -> list[Score]:
        """The log-likelihood of each continuation after its context, in their order; see ``jaxllm.scoring.score``."""
        return score(self, contexts, continuations, use_tqdm=use_tqdm)

    def embed(self, prompts: Prompt | Sequence[Prompt], *, normalize: bool = True, dimensions: int | None = None,
              truncate_prompt_tokens: int | None = None, use_tqdm: Bar = True, raise_on_error: bool = False
              ) -> list[EmbeddingRequestOutput]:
        """The embeddings of texts, ``outputs.embedding`` of each: the final hidden state of their last token.

        For decoders that were trained so, like Qwen3-Embedding. Prompts are encoded with what their tokenizers add at
        the end; instructions are the caller's to put in front.

        normalize: to length 1. dimensions: keep so many of the first (Kusupati et al. 2022, Matryoshka).
        truncate_prompt_tokens: keep the last so many tokens; -1 what fits.

        The other arguments and errors are as in ``generate``.
        """
        check_pooling(self._path)
        return embed(self.engine, self.model_config.hidden_size, prompts, normalize=normalize, dimensions=dimensions,
                     truncate_prompt_tokens=truncate_prompt_tokens, use_tqdm=use_tqdm, raise_on_error=raise_on_error)

    def reward(self, prompts: Prompt | Sequence[Prompt], *, truncate_prompt_tokens: int | None = None,
               use_tqdm: Bar = True, raise_on_error: bool = False) -> list[RewardRequestOutput]:
        """What a reward model's head makes of texts, ``outputs.data`` of each: a number for each of its labels, of
        their last token.

        For checkpoints with ``score.weight`` ("LlamaForSequenceClassification"); ``ParameterError`` for others. Of
        conversations give ``chat_prompt(messages, add_generation_prompt=False)``. The arguments are as in ``embed``.
        """
        return reward(self.engine, self._score_head, prompts, truncate_prompt_tokens=truncate_prompt_tokens,
                      use_tqdm=use_tqdm, raise_on_error=raise_on_error)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        use_tqdm: Bar = True,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        priority: Sequence[int] | None = None,
        raise_on_error: bool = False,
        **others: Any,
    ) -> list[RequestOutput]:
        """Answer conversations through the model's chat template; see ``Tokenizer.apply_chat_template``.

        messages: one conversation, ``[{"role": "user", "content": "..."}]``, or a list of them.
        chat_template_kwargs: further variables that the template sees, such as ``documents`` or ``enable_thinking``.

        The other arguments are those of ``generate``.
        """
        CHAT_ARGUMENTS.check(others)
        prompts = self._chats.prompts(
            messages, chat_template_kwargs, tools=tools, add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message, chat_template=chat_template)
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm, priority=priority,
                             raise_on_error=raise_on_error)

    def chat_prompt(self, messages: Conversation, *, chat_template: str | None = None, **options: Any
                    ) -> dict[str, Any]:
        """The prompt that a conversation becomes: its text and its token ids, with exactly one BOS.

        options: those of ``Tokenizer.apply_chat_template``.
        """
        return self._chats.prompt(messages, chat_template=chat_template, **options)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer; ``ParameterError`` if the engine was made without one."""
        return self._chats.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What ``generate`` uses when given no sampling parameters: the model's ``generation_config.json``, if any."""
        return self._defaults.params

    def reset_prefix_cache(self) -> None:
        """Forget all cached prefixes."""
        self.engine.reset_prefix_cache()

    def update_params(self, params: Any) -> None:
        """Take new weights; see ``Engine.update_params``."""
        self.engine.update_params(params)

    def save_pretrained(self, folder: str | os.PathLike[str], *, max_shard_size: int | str = 5_000_000_000,
                        overwrite: bool = False) -> None:
        """Write the model, with the parameters that it has now, as a Hugging Face folder.

        It holds ``config.json``, the weights in the engine's dtype under the checkpoint's own names, the tokenizer's
        files and ``generation_config.json``; transformers loads it, and ``LLM(folder)`` with the same bits.

        folder: is there when it is complete, or not at all.
        max_shard_size: bytes of a file, as a number or like "2G"; more go into several, with an index.
        overwrite: replace a folder that holds a model and nothing else.

        Raises ``UnsupportedModelError`` where parameters are quantized in memory, ``ParameterError`` for a folder that
        is not allowed and for a model of a ``DecoderConfig``, of which no ``config.json`` can be made,
        ``CapacityError`` without room on the disk, ``EngineError`` while the engine has no weights.
        """
        from jaxllm.saving import save_pretrained  # few write what they have loaded

        save_pretrained(self._origin, self.engine.params, folder, max_shard_size=max_shard_size, overwrite=overwrite)

    def sleep(self, level: int = 1) -> None:
        """Give back memory until ``wake_up``; see ``Engine.sleep``."""
        self.engine.sleep(level)

    def wake_up(self) -> None:
        """End ``sleep``."""
        self.engine.wake_up()

    def stats(self) -> EngineStats:
        """The engine's load and totals."""
        return self.engine.stats()

    def warm_up(self) -> None:
        """Compile every program that any batch can need, instead of each at its first use."""
        self.engine.compile_all()

    if not TYPE_CHECKING:
        def __getattr__(self, name: str) -> NoReturn:
            raise missing_attribute(self, name)
