"""Which engines there are to compare, where they are looked for, and why one is missing."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OURS = "jaxllm"
PLAIN = "jaxllm-plain"
WIDE = "jaxllm-128"
SYNC = "jaxllm-sync"
XLA = "jaxllm-xla"
INT8, BLOCKS, BLOCKS_A8 = "jaxllm-int8", "jaxllm-gguf", "jaxllm-gguf-a8"
HF, VLLM = "hf-bf16", "vllm-bf16"
OPENVINO, OPENVINO_Q4 = "openvino-f16", "openvino-q4"
LLAMACPP, LLAMACPP_Q4 = "llamacpp-bf16", "llamacpp-q4"
ORT = "ort-int4"

KV_GIB = 4
"""Default size of the peers' KV caches."""
SLOTS = 64
"""Requests that llama.cpp's server takes at once."""
NO_ROOT = "neither --peers-root nor $PEERS_ROOT is given"


@dataclasses.dataclass(frozen=True)
class PeerModel:
    """What the peers run while jaxllm runs its model of that ``name``: files and folders below ``models``.

    gguf: jaxllm's own file, whose matrices are of ``quantization``; all others are made of it. gguf_bf16, folder: as a
    GGUF file and as a Hugging Face folder in bfloat16. openvino: in float16. openvino_q4: in ``openvino_quantization``.
    ort: in int4. own_ids: whether the workloads' ids are text in its vocabulary. Where they are none, greedy
    continuations soon repeat themselves, and speculation would win what it does with no text: jaxllm runs without.
    """

    name: str
    quantization: str
    gguf: str
    gguf_bf16: str
    folder: str
    openvino: str
    openvino_q4: str
    openvino_quantization: str
    ort: str
    own_ids: bool


PEER_MODELS = (
    PeerModel(
        name="SmolLM2-135M-Instruct", quantization="Q4_1", gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_bf16="SmolLM2-135M-Instruct.BF16.gguf", folder="smollm2-135m-instruct-bf16",
        openvino="SmolLM2-135M-Instruct.F16.gguf", openvino_q4="SmolLM2-135M-Instruct.Q4_1.gguf",
        openvino_quantization="Q4_1", ort="smollm2-135m-instruct-ort-int4", own_ids=True),
    # OpenVINO's reader of GGUF files knows no Gemma, so it has folders that its exporter wrote.
    PeerModel(
        name="gemma-3-270m", quantization="Q4_K_M", gguf="gemma-3-270m.Q4_K_M.gguf",
        gguf_bf16="gemma-3-270m.BF16.gguf", folder="gemma-3-270m-bf16", openvino="gemma-3-270m-ov-f16",
        openvino_q4="gemma-3-270m-ov-int4", openvino_quantization="int4", ort="gemma-3-270m-ort-int4", own_ids=False),
)
"""The models that can be compared, the default first."""


@dataclasses.dataclass(frozen=True)
class EngineSpec:
    """How to start an engine.

    about: what it is, for the report. python, driver: what runs, a file of this folder, with ``options``.
    environment: on top of this process's. warms_up: whether its first run of a workload is slower than others, since it
    compiles or caches. missing: why it cannot be started; ``None`` if it can.
    """

    name: str
    about: str
    python: Path
    driver: str
    options: Mapping[str, Any]
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warms_up: bool = True
    missing: str | None = None


def find_model(name: str) -> PeerModel:
    """The model of that name, in any letter case, as jaxllm takes it. Raises ``ValueError`` if there is none."""
    for model in PEER_MODELS:
        if model.name.lower() == name.lower():
            return model
    raise ValueError(f"--model: no {name!r}; there are {', '.join(model.name for model in PEER_MODELS)}")


def find_engines(root: Path | None, files: PeerModel, dtype: str) -> dict[str, EngineSpec]:
    """All engines by name, those that are missing included.

    root: the folder with the peers' ``venvs`` and ``models`` (benchmarks/README.md says how to fill it).
    files: of the model that all run. dtype: jaxllm's.
    """
    def ours(name: str, about: str, **llm: Any) -> EngineSpec:
        implied = {} if files.own_ids or "speculative_config" in llm else {"speculative_config": None}
        return EngineSpec(name, f"jaxllm, {about}" + (", speculation off" if implied else ""), Path(sys.executable),
                          "drive_jaxllm.py", {"model": files.name, "llm": {"dtype": dtype, **implied, **llm}})

    kernels_of_xla = ours(XLA, "kernels of XLA only")
    variants = [
        ours(OURS, "with its defaults"),
        ours(PLAIN, "speculation off", speculative_config=None),
        ours(SYNC, "overlap off", overlap=False),
        ours(WIDE, "max_num_seqs=128", max_num_seqs=128),
        ours(INT8, 'quantization="int8"', quantization="int8"),
        ours(BLOCKS, 'quantization="gguf"', quantization="gguf"),
        ours(BLOCKS_A8, 'quantization="gguf-a8"', quantization="gguf-a8"),
        dataclasses.replace(kernels_of_xla, options={**kernels_of_xla.options, "implementation": "xla"}),
    ]
    folder = {"model": files.folder, "dtype": "bfloat16"}
    peers = [
        _peer(root, HF, "Hugging Face transformers, bfloat16", "hf", "drive_hf.py", folder),
        _vllm(root, folder),
        _peer(root, OPENVINO, "OpenVINO GenAI, float16 weights", "ov", "drive_openvino.py",
              {"model": files.openvino, "kv_gib": KV_GIB}),
        _peer(root, OPENVINO_Q4, f"OpenVINO GenAI, {files.openvino_quantization} weights", "ov", "drive_openvino.py",
              {"model": files.openvino_q4, "kv_gib": KV_GIB}),
        _llamacpp(root, LLAMACPP, "llama.cpp, bfloat16 weights", files.gguf_bf16),
        _llamacpp(root, LLAMACPP_Q4, f"llama.cpp, {files.quantization} weights", files.gguf),
        _peer(root, ORT, "ONNX Runtime GenAI, int4 weights", "ort", "drive_ort.py", {"model": files.ort}),
    ]
    return {engine.name: engine for engine in [*variants, *peers]}


def _peer(root: Path | None, name: str, about: str, venv: str, driver: str, options: Mapping[str, Any],
          environment: Mapping[str, str] | None = None) -> EngineSpec:
    """A peer with its own Python and a model below ``root``."""
    python = Path("python") if root is None else root / "venvs" / venv / "bin" / "python"
    engine = EngineSpec(name, about, python, driver, options, environment or {})
    if root is None:
        return dataclasses.replace(engine, missing=NO_ROOT)
    path = root / "models" / options["model"]
    return _with_files(dataclasses.replace(engine, options={**options, "model": str(path)}))


def _with_files(engine: EngineSpec) -> EngineSpec:
    """The engine, missing if any of the files that it needs is."""
    needed = [engine.python, *(Path(engine.options[name]) for name in ("model", "server") if name in engine.options)]
    absent = [str(path) for path in needed if not path.exists()]
    return dataclasses.replace(engine, missing=f"there is no {' and no '.join(absent)}" if absent else None)


def _vllm(root: Path | None, folder: Mapping[str, Any]) -> EngineSpec:
    """Bound to all usable cores, without which it uses fewer; with the libraries preloaded that it recommends."""
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0)))) if hasattr(os, "sched_getaffinity") else "all"
    preloaded = sorted(Path("/").glob("usr/lib/*/libtcmalloc_minimal.so.4"))[:1]
    if root is not None:
        preloaded += [path for path in [root / "venvs" / "vllm" / "lib" / "libiomp5.so"] if path.exists()]
    environment = {
        "VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "LD_PRELOAD": ":".join(map(str, preloaded)),
    }
    about = "vLLM's CPU build, bfloat16, preloading " + (" and ".join(path.name for path in preloaded) or "nothing")
    return _peer(root, VLLM, about, "vllm", "drive_vllm.py", {**folder, "kv_gib": KV_GIB}, environment)


def _llamacpp(root: Path | None, name: str, about: str, model: str) -> EngineSpec:
    """Its driver needs nothing but Python, so this one serves."""
    options = {"model": model, "max_slots": SLOTS}
    engine = _peer(root, name, about, "llamacpp", "drive_llamacpp.py", options)
    if root is None:
        return engine
    server = root / "venvs" / "llamacpp" / "bin" / "llama-server"
    return _with_files(dataclasses.replace(engine, python=Path(sys.executable), warms_up=False,
                                           options={**engine.options, "server": str(server)}))
