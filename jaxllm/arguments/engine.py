"""vLLM's arguments of ``LLM(...)``, those of its ``EngineArgs`` included, and those that earlier versions had."""

from __future__ import annotations

from jaxllm.arguments.table import REQUIRED, ArgumentTable, honoured, refused

_ONE_DEVICE = ("set tensor_parallel_size, pipeline_parallel_size, data_parallel_size, or mesh, to run on several "
               "devices; leave this out")
_TEXT_ONLY = "jaxllm runs models of text only; leave it out"
_NO_ADAPTERS = "jaxllm has no LoRA yet; merge the adapter into the weights (peft's merge_and_unload)"
_NO_DRAFT_MODELS = 'set speculative_config={"method": "ngram"}, which is all that jaxllm speculates by'
_ATTENTION_ONLY = "jaxllm has no state-space models; leave it out"
_COMPILED = "jaxllm always runs compiled programs, a few per model; LLM.warm_up() compiles them all ahead"
_OWN_KERNELS = "jaxllm chooses its kernels by platform; leave it out"
_IN_PROCESS = "jaxllm runs in your own process, without workers; leave it out"
_NO_SERVER = "it concerns vLLM's server, which jaxllm does not have; leave it out"
_CHUNKS = "prompts are always computed in chunks beside running requests, within max_num_batched_tokens"
_NO_METRICS = "see LLM.stats() and disable_log_stats=False for figures, and jax.profiler for traces"
_WEIGHTS_ON_DEVICE = "weights stay on the device; take a smaller dtype or model"
_FROM_CHECKPOINT = 'set quantization="gguf" for a .gguf file, or "int8" for any checkpoint'
_HUB = "the settings of huggingface_hub apply: "
_OWN_CACHE = "jaxllm manages one cache for all layers; set kv_cache_bytes or block_size"
_ONE_GRAMMAR = "jaxllm has one grammar library; leave it out, and see SamplingParams.structured_outputs"
_POOLING = "leave it out: LLM.embed and LLM.reward pool a decoder by its last token"

ENGINE_ARGUMENTS = ArgumentTable("LLM", [
    *honoured(
        model=(REQUIRED, "also a `.gguf` file or a packaged model's name; the one positional "
               "argument"),
        tokenizer=(None, "also a `.gguf` file or a `jaxllm.tokenization.Tokenizer`"),
        tokenizer_revision=(None, ""),
        skip_tokenizer_init=(False, "token ids in, token ids out, and no text"),
        chat_template=(None, "a template's source, its name or its file; the default of `chat`"),
        revision=(None, ""),
        dtype=("auto", '"auto" goes by the hardware, not by the checkpoint: bfloat16 where it is fast, else float32'),
        quantization=(None, '"gguf" computes with the blocks of a `.gguf` file, "gguf-a8" so with activations of '
                      '8 bits, "int8" with 8-bit weights, which are made while loading, "none" decodes; others are '
                      'refused. `None`: "int8" for checkpoints that '
                      "are compressed-tensors' int8 of weights alone, else decoded"),
        seed=(0, "`None`: unseeded requests differ from run to run, and report the seed they used. With a seed, theirs "
              "follow from it and their order of arrival"),
        max_model_len=(None, 'also "8k" (8,000) and "8K" (8,192); `None`, "auto" and -1 take what fits'),
        max_num_seqs=(None, "64 on CPUs, 256 elsewhere"),
        max_num_batched_tokens=(None, "512 on CPUs, 8192 elsewhere; 16 or more"),
        block_size=(None, "32 on CPUs, 64 elsewhere"),
        gpu_memory_utilization=(0.9, "of accelerators only; on the host `kv_cache_bytes`"),
        kv_cache_memory_bytes=(None, "the same as `kv_cache_bytes`, jaxllm's name; also \"16G\""),
        kv_cache_dtype=("auto", "the model's dtype, \"int8\" or \"fp8\" (also \"fp8_e4m3\"): each token's keys and "
                        "values with a scale per kv head, as \"int8_per_token_head\" and \"fp8_per_token_head\", "
                        "which are names of them; others are refused"),
        swap_space=(4, 'works: preempted requests move to host memory and back; GiB, or "16G"; default 0'),
        enable_prefix_caching=(None, "on; outputs are the same with and without, to the bit"),
        scheduling_policy=("fcfs", ""),
        max_logprobs=(20, "-1 allows the whole vocabulary"),
        logprobs_mode=("raw_logprobs", '"raw_logprobs" or "processed_logprobs"; `SamplingParams.logprobs_mode` chooses '
                       "per request, and the output names it"),
        logits_processors=(None, "JAX functions by name, which requests choose by name"),
        generation_config=("auto", ""),
        override_generation_config=({}, "names that are not known raise"),
        load_format=("auto", '"auto", "safetensors", "gguf", or "dummy": random weights'),
        speculative_config=(None, 'the method "ngram" alone, or "auto": on where it pays; outputs are the same'),
        disable_log_stats=(True, "`False` logs a line of figures every 10 s"),
        tensor_parallel_size=(1, "at most as many devices as there are, and a number that heads and widths divide by"),
        pipeline_parallel_size=(1, "at most as many as there are layers"),
        data_parallel_size=(1, "replicas in this engine, each with the sizes that are given"),
        enable_expert_parallel=(False, "whole experts on each of these devices, rather than a part of each expert"),
    ),
    *refused("leave it out: LLM.embed and LLM.reward work beside LLM.generate", "generate",
             task="auto", runner="auto"),
    *refused(_POOLING, "none", convert="auto", pooler_config=None, override_pooler_config=None),
    *refused("a fast tokenizer is used, whatever its files; leave it out", "hf", tokenizer_mode="auto"),
    *refused("code from checkpoints is never run; jaxllm.models.registry lists the architectures that it knows",
             trust_remote_code=False, code_revision=None),
    *refused('only Hugging Face\'s config.json and GGUF are read; leave it at "auto"', "hf", config_format="auto"),
    *refused("edit config.json in a copy of the model's folder; for a shorter context, set max_model_len",
             None, hf_overrides={}, hf_config_path=None, rope_scaling=None, rope_theta=None),
    *refused(_HUB + "set HF_TOKEN, or log in with 'hf auth login'", True, hf_token=None),
    *refused(_HUB + "set HF_HUB_CACHE to another folder", download_dir=None),
    *refused("only configuration, tokenizer and weights are downloaded; leave it out",
             "original/**/*", ["original/**/*"], ignore_patterns=None),
    *refused("weights are read in parallel, with no bar; leave it out",
             None, {}, True, False, model_loader_extra_config={}, safetensors_load_strategy=None,
             max_parallel_loading_workers=None, use_tqdm_on_load=True, pt_load_map_location="cpu"),
    *refused(_FROM_CHECKPOINT, None, False, quantization_config=None,
             allow_deprecated_quantization=False, quantization_param_path=None),
    *refused("models are written in JAX; leave it out", "vllm", model_impl="auto"),
    *refused("programs are always compiled, and a first start takes seconds; leave it out", enforce_eager=False),
    *refused(_COMPILED, None, compilation_config={}, max_seq_len_to_capture=8192, max_context_len_to_capture=None,
             cudagraph_capture_sizes=None, max_cudagraph_capture_size=None, optimization_level=2),
    *refused(_OWN_KERNELS, None, {}, attention_backend=None, attention_config={}, kernel_config={}, moe_backend="auto",
             ir_op_priority={}, enable_flashinfer_autotune=True, disable_cascade_attn=False,
             override_attention_dtype=None, disable_custom_all_reduce=False, performance_mode="balanced",
             gdn_prefill_backend=None),
    *refused(_ONE_DEVICE, None, prefill_context_parallel_size=1, decode_context_parallel_size=1,
             dcp_comm_backend="ag_rs", dcp_kv_cache_interleave_size=1, cp_kv_cache_interleave_size=1,
             data_parallel_rank=None, data_parallel_start_rank=None, data_parallel_size_local=None,
             data_parallel_address=None, data_parallel_rpc_port=None, data_parallel_hybrid_lb=False,
             data_parallel_external_lb=False, data_parallel_backend="mp", nnodes=1, node_rank=0,
             master_addr="127.0.0.1", master_port=29501, distributed_timeout_seconds=None, enable_eplb=False,
             eplb_config={}, enable_elastic_ep=False, enable_ep_weight_filter=False,
             all2all_backend="allgather_reducescatter", expert_placement_strategy="linear",
             enable_dbo=False, ubatch_size=0, dbo_decode_token_threshold=32,
             dbo_prefill_token_threshold=512, disable_nccl_for_dp_synchronization=None),
    *refused(_IN_PROCESS, "uni", None, distributed_executor_backend=None, worker_cls="auto", worker_extension_cls="",
             worker_use_ray=False, ray_workers_use_nsight=False, numa_bind=False, numa_bind_nodes=None,
             numa_bind_cpus=None, scheduler_cls=None, additional_config={}, disable_async_output_proc=False,
             fail_on_environ_validation=False, shutdown_timeout=0),
    *refused("set overlap, which is on unless told otherwise", None, True, async_scheduling=False),
    *refused("set JAX_PLATFORMS to cpu, cuda or tpu before the program starts", device="auto"),
    *refused(_CHUNKS, True, enable_chunked_prefill=None),
    *refused(_CHUNKS, True, max_num_partial_prefills=1, max_long_partial_prefills=1, long_prefill_token_threshold=0,
             scheduler_reserve_full_isl=True, num_scheduler_steps=1, multi_step_stream_outputs=True,
             scheduler_delay_factor=0.0),
    *refused("requests are preempted to host memory where swap_space allows, else computed anew",
             "recompute", "swap", preemption_mode=None),
    *refused("set kv_cache_bytes", num_gpu_blocks_override=None),
    *refused("set swap_space", "native", kv_offloading_size=None, kv_offloading_backend="native"),
    *refused(_OWN_CACHE, None, True, prefix_caching_hash_algo="sha256", disable_hybrid_kv_cache_manager=None,
             kv_sharing_fast_prefill=False, calculate_kv_scales=False, kv_cache_dtype_skip_layers=[],
             use_v2_block_manager=True),
    *refused("set max_model_len to the window's size, at which no window is needed", disable_sliding_window=False),
    *refused("the cache stays in this process; leave it out",
             kv_transfer_config=None, kv_events_config=None, ec_transfer_config=None),
    *refused(_WEIGHTS_ON_DEVICE, set(), cpu_offload_gb=0, cpu_offload_params=set(), offload_backend="auto",
             offload_group_size=0, offload_num_in_group=1, offload_prefetch_step=1, offload_params=set()),
    *refused(_NO_DRAFT_MODELS, speculative_model=None, num_speculative_tokens=None, num_lookahead_slots=0),
    *refused(_NO_ADAPTERS, False, enable_lora=False, max_loras=1, max_lora_rank=16, max_cpu_loras=None,
             lora_dtype="auto", lora_extra_vocab_size=256, long_lora_scaling_factors=None, fully_sharded_loras=False,
             lora_target_modules=None, default_mm_loras=None, enable_tower_connector_lora=False,
             specialize_active_lora=False, enable_lora_bias=False, enable_prompt_adapter=False),
    *refused(_TEXT_ONLY, None, {}, limit_mm_per_prompt={}, language_model_only=False, enable_mm_embeds=False,
             interleave_mm_strings=False, media_io_kwargs={}, mm_processor_kwargs=None, mm_processor_cache_gb=4,
             mm_processor_cache_type="lru", mm_shm_cache_max_object_size_mb=128, mm_encoder_only=False,
             mm_encoder_tp_mode="weights", mm_encoder_attn_backend=None, mm_encoder_attn_dtype=None,
             mm_encoder_fp8_scale_path=None, mm_encoder_fp8_scale_save_path=None,
             mm_encoder_fp8_scale_save_margin=1.5, mm_tensor_ipc="direct_rpc", skip_mm_profiling=False,
             video_pruning_rate=None, disable_mm_preprocessor_cache=False, disable_chunked_mm_input=False,
             io_processor_plugin=None, renderer_num_workers=1, allowed_local_media_path="",
             allowed_media_domains=None),
    *refused("give token ids or text as prompts", enable_prompt_embeds=False, tokens_only=False),
    *refused(_ATTENTION_ONLY, None, mamba_config={}, mamba_cache_dtype="auto", mamba_ssm_cache_dtype="auto",
             mamba_block_size=None, mamba_cache_mode="none", mamba_backend="triton",
             enable_mamba_cache_stochastic_rounding=False, mamba_cache_philox_rounds=0),
    *refused(_ONE_GRAMMAR, None, "auto", structured_outputs_config={}, guided_decoding_backend="auto",
             guided_decoding_disable_fallback=False, guided_decoding_disable_any_whitespace=False,
             guided_decoding_disable_additional_properties=False, logits_processor_pattern=None),
    *refused("reasoning is part of the text; split it at the model's own marks",
             None, {}, reasoning_parser="", reasoning_parser_plugin=None, reasoning_config={}),
    *refused("LLM.update_params(params) takes new weights, from this process", weight_transfer_config=None),
    *refused("every engine can sleep and wake up; leave it out", True, enable_sleep_mode=False),
    *refused("jaxllm does not report which experts ran", enable_return_routed_experts=False),
    *refused("LLM.stream yields every step's tokens", stream_interval=1),
    *refused(_NO_SERVER, None, served_model_name=None, disable_log_requests=True, aggregate_engine_logging=False,
             tokenizer_pool_size=0, tokenizer_pool_type="ray", tokenizer_pool_extra_config=None),
    *refused(_NO_METRICS, None, {}, profiler_config={}, otlp_traces_endpoint=None, collect_detailed_traces=None,
             show_hidden_metrics_for_version=None, kv_cache_metrics=False, kv_cache_metrics_sample=0.01,
             cudagraph_metrics=False, enable_layerwise_nvtx_tracing=False, enable_mfu_metrics=False,
             enable_logging_iteration_details=False, enable_mm_processor_stats=False),
], own=("kv_cache_bytes", "first_step", "overlap", "deterministic", "mesh"))

GENERATE_ARGUMENTS = ArgumentTable("generate", [
    *honoured(
        prompts=(REQUIRED, "also an array of token ids, or several"),
        sampling_params=(None, ""),
        use_tqdm=(True, "shown in terminals and notebooks only; a callable makes the bar, wherever it runs"),
        priority=(None, 'one integer per prompt; needs `scheduling_policy="priority"`'),
    ),
    *refused(_NO_ADAPTERS, lora_request=None),
    *refused("give token ids as prompts", prompt_token_ids=None),
    *refused("see SamplingParams.structured_outputs", guided_options_request=None),
    *refused("jaxllm has no prompt adapters", prompt_adapter_request=None),
    *refused("SamplingParams.truncate_prompt_tokens shortens prompts; for anything else, tokenize them yourself and "
             "give token ids", {}, tokenization_kwargs=None),
    *refused(_TEXT_ONLY, {}, mm_processor_kwargs=None),
], own=("raise_on_error",))

PROMPT_KEYS = ArgumentTable("a prompt", [
    *honoured(prompt=(None, ""), prompt_token_ids=(None, "with `prompt` beside it, that is only reported back")),
    *refused("set SamplingParams.cache_salt", cache_salt=None),
    *refused(_TEXT_ONLY, {}, multi_modal_data=None, multi_modal_uuids=None, mm_processor_kwargs=None),
    *refused("give token ids or text", prompt_embeds=None, encoder_prompt=None, decoder_prompt=None,
             token_type_ids=None),
])

CHAT_ARGUMENTS = ArgumentTable("chat", [
    *honoured(
        messages=(REQUIRED, ""),
        sampling_params=(None, ""),
        use_tqdm=(True, "as in `generate`"),
        chat_template=(None, "also the name of one of the model's templates"),
        add_generation_prompt=(True, ""),
        continue_final_message=(False, ""),
        tools=(None, "refused where the template would drop them"),
        chat_template_kwargs=(None, "also `documents` and what else the template knows"),
    ),
    *(GENERATE_ARGUMENTS[name] for name in ("lora_request", "tokenization_kwargs", "mm_processor_kwargs")),
    *refused('content is given to the template in the form that it expects; leave it at "auto"',
             chat_template_content_format="auto"),
], own=("raise_on_error", "priority"))
