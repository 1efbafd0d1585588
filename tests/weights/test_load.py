"""``load_params``: what the arrays hold, that checks come before any data is read, and what it takes in memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding
from weights.checkpoint_files import HIDDEN, llama_tensors, write_hf_folder, write_llama_gguf

from jaxllm.errors import CheckpointError, ParameterError
from jaxllm.weights import GGUFSource, ParamSpec, Piece, SafetensorsSource, load, load_params

LAYER = "model.layers.0."
QKV = [f"{LAYER}self_attn.{name}_proj.weight" for name in "qkv"]


def spec(*shape: int, dtype: object = jnp.float32) -> ParamSpec:
    return ParamSpec(shape, dtype, (None,) * len(shape))


def plain_specs(tensors: Mapping[str, np.ndarray]) -> dict[str, ParamSpec]:
    return {name: spec(*values.shape) for name, values in tensors.items()}


def plain_map(tensors: Mapping[str, np.ndarray]) -> dict[str, list[str]]:
    return {name: [name] for name in tensors}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("stored", [Type.F32, Type.BF16, Type.Q8_0])
def test_values_are_the_checkpoints_rounded_once(tmp_path: Path, dtype: type, stored: Type):
    path, expected = write_llama_gguf(tmp_path / "model.gguf", stored)
    params = load_params(GGUFSource(path), plain_specs(expected), plain_map(expected), dtype=dtype)
    assert set(params) == set(expected)
    for name, values in expected.items():
        assert isinstance(params[name], jax.Array)
        assert params[name].dtype == dtype
        np.testing.assert_array_equal(np.asarray(params[name]), values.astype(jnp.dtype(dtype)))


def test_the_dtype_of_each_spec_holds_when_none_is_given(tmp_path: Path):
    tensors = {"a": np.ones((2, 3), np.float32), "b": np.ones(4, np.float32), "n": np.arange(3, dtype=np.int32)}
    source = SafetensorsSource(write_hf_folder(tmp_path, tensors))
    specs = {"a": spec(2, 3, dtype=jnp.bfloat16), "b": spec(4), "n": spec(3, dtype=jnp.int32)}
    for given, floats in ((None, (jnp.bfloat16, jnp.float32)), ("float16", (jnp.float16, jnp.float16))):
        params = load_params(source, specs, plain_map(tensors), dtype=given)
        assert tuple(params[name].dtype for name in "abn") == (*floats, jnp.int32)
    with pytest.raises(ParameterError, match=r"dtype=.*floating-point"):
        load_params(source, specs, plain_map(tensors), dtype=jnp.int8)


@pytest.mark.parametrize("task_size", [1, 1000, 1 << 18])
def test_fused_parameters_are_the_pieces_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task_size: int
):
    monkeypatch.setattr(load, "_TASK_SIZE", task_size)
    path, expected = write_llama_gguf(tmp_path / "model.gguf", Type.Q8_0)
    fused = np.concatenate([expected[name] for name in QKV])
    params = load_params(GGUFSource(path), {"qkv": spec(*fused.shape)}, {"qkv": QKV}, ignore=["."], threads=3)
    np.testing.assert_array_equal(params["qkv"], fused)


def test_fused_biases_and_scalars_load(tmp_path: Path):
    a, b = np.arange(3, dtype=np.float32), np.arange(5, dtype=np.float32)
    tensors = {"a": a, "b": b, "s": np.full((), 7, np.float32)}
    source = SafetensorsSource(write_hf_folder(tmp_path, tensors))
    params = load_params(source, {"ab": spec(8), "s": spec()}, {"ab": ["a", "b"], "s": ["s"]})
    np.testing.assert_array_equal(params["ab"], [0, 1, 2, 0, 1, 2, 3, 4])
    assert params["s"].shape == ()
    assert params["s"] == 7


def test_transforms_apply_to_single_pieces(tmp_path: Path):
    values = np.arange(24, dtype=np.float32).reshape(6, 4)
    source = SafetensorsSource(write_hf_folder(tmp_path, {"x": values, "y": values + 100}))
    weight_map = {
        "transposed": [Piece("x", np.transpose)],
        "slices": [Piece("x", lambda x: x[4:]), "y", Piece("x", lambda x: x[:2] + 1)],
        "stacked": [Piece("x", lambda x: x[None]), Piece("y", lambda y: y[None])],
    }
    specs = {"transposed": spec(4, 6), "slices": spec(10, 4), "stacked": spec(2, 6, 4)}
    params = load_params(source, specs, weight_map)
    np.testing.assert_array_equal(params["transposed"], values.T)
    np.testing.assert_array_equal(params["slices"], np.concatenate([values[4:], values + 100, values[:2] + 1]))
    np.testing.assert_array_equal(params["stacked"], np.stack([values, values + 100]))


class UnreadableSource(SafetensorsSource):
    """Data must not be read."""

    def read_rows(self, name: str, start: int, stop: int, out: np.ndarray) -> None:
        raise AssertionError(f"{name} was read")


def test_all_that_does_not_fit_is_listed_together_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shapes = {"ok": (2, 2), "wrong": (2, 3), "q": (2, 4), "k": (1, 4), "extra": (1,), "layers.3.rotary.inv_freq": (4,)}
    tensors = {name: np.ones(shape, np.float32) for name, shape in shapes.items()} | {"ints": np.ones((2, 2), np.int32)}
    source = UnreadableSource(write_hf_folder(tmp_path, tensors))
    specs = {"ok": spec(2, 2), "wrong": spec(3, 2), "qk": spec(4, 4), "gone": spec(5), "turned": spec(2, 4),
             "ints": spec(2, 2)}
    weight_map = {"ok": ["ok"], "wrong": ["wrong"], "qk": ["q", "k"], "gone": ["gone", "lost"],
                  "turned": [Piece("q", np.transpose)], "ints": ["ints"]}
    monkeypatch.setattr(load, "empty_aligned", None)  # nor is memory taken
    with pytest.raises(CheckpointError) as caught:
        load_params(source, specs, weight_map, ignore=[r"\.inv_freq$"])
    lines = [line.strip() for line in str(caught.value).splitlines()[1:]]
    assert lines == [
        "missing: gone",
        "missing: lost",
        "unexpected: extra, of shape [1]",
        "wrong shape: wrong should be [3, 2], the checkpoint has wrong [2, 3]",
        "wrong shape: qk should be [4, 4], the checkpoint has q [2, 4], k [1, 4]",
        "wrong shape: turned should be [2, 4], the checkpoint has q [4, 2]",
        "wrong type: ints is I32, not numbers with a floating point",
    ]


def test_a_long_list_of_problems_is_cut_and_counted(tmp_path: Path):
    tensors = {f"x{number:03d}": np.ones(1, np.float32) for number in range(100)}
    source = SafetensorsSource(write_hf_folder(tmp_path, tensors))
    with pytest.raises(CheckpointError, match="and 70 more"):
        load_params(source, {}, {})


def test_specs_and_weight_map_must_name_the_same_parameters(tmp_path: Path):
    source = SafetensorsSource(write_hf_folder(tmp_path, {"x": np.ones(1, np.float32)}))
    with pytest.raises(ParameterError, match=r"weight_map=\['x', 'y'\]"):
        load_params(source, {"x": spec(1)}, {"y": ["x"]})
    with pytest.raises(ParameterError, match="threads=0"):
        load_params(source, {"x": spec(1)}, {"x": ["x"]}, threads=0)


def test_float16_overflow_names_the_tensor(tmp_path: Path):
    source = SafetensorsSource(write_hf_folder(tmp_path, {"big": np.array([[1e6]], np.float32)}))
    with pytest.raises(CheckpointError, match=r"cannot load 'big': .*float16.*bfloat16"):
        load_params(source, {"big": spec(1, 1)}, {"big": ["big"]}, dtype=jnp.float16)


def test_a_file_cut_after_its_header_was_read_is_reported(tmp_path: Path):
    source = SafetensorsSource(write_hf_folder(tmp_path, {"x": np.ones((64, 64), np.float32)}))
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(CheckpointError, match=r"model.safetensors.* ended at byte"):
        load_params(source, {"x": spec(64, 64)}, {"x": ["x"]})


def test_progress_counts_bytes_up_to_the_whole(tmp_path: Path):
    tensors = llama_tensors()
    source = SafetensorsSource(write_hf_folder(tmp_path, tensors))
    calls: list[tuple[int, int]] = []
    load_params(source, plain_specs(tensors), plain_map(tensors), dtype=jnp.bfloat16,
                progress=lambda done, total: calls.append((done, total)))
    whole = sum(values.size * 2 for values in tensors.values())
    assert [total for _, total in calls] == [whole] * len(tensors)
    assert calls[-1] == (whole, whole)
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_each_parameter_is_given_to_the_devices_as_asked_for(tmp_path: Path):
    tensors = llama_tensors()
    source = SafetensorsSource(write_hf_folder(tmp_path, tensors))
    device = jax.devices()[-1]
    asked: dict[str, tuple[int, ...]] = {}

    def put(name: str, array: np.ndarray) -> jax.Array:
        asked[name] = array.shape
        return jax.device_put(array, device)

    params = load_params(source, plain_specs(tensors), plain_map(tensors), put=put)
    assert asked == {name: values.shape for name, values in tensors.items()}
    assert all(array.sharding == SingleDeviceSharding(device) for array in params.values())


def test_named_shardings_split_the_parameter_over_the_mesh(tmp_path: Path):
    tensors = {"w": np.arange(HIDDEN * 32, dtype=np.float32).reshape(HIDDEN, 32)}
    source = SafetensorsSource(write_hf_folder(tmp_path, tensors))
    mesh = jax.make_mesh((len(jax.devices()),), ("tensor",))
    sharding = NamedSharding(mesh, PartitionSpec("tensor", None))
    params = load_params(source, plain_specs(tensors), plain_map(tensors),
                         put=lambda name, array: jax.device_put(array, sharding))
    assert params["w"].sharding == sharding
    np.testing.assert_array_equal(params["w"], tensors["w"])


def test_on_the_cpu_the_array_is_the_buffer_that_was_read_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    tensors = llama_tensors()
    source = SafetensorsSource(write_hf_folder(tmp_path, tensors))
    buffers: list[int] = []

    def recorded(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        buffer = empty_aligned(shape, dtype)
        buffers.append(buffer.ctypes.data)
        return buffer

    empty_aligned = load.empty_aligned
    monkeypatch.setattr(load, "empty_aligned", recorded)
    cpu = SingleDeviceSharding(jax.devices("cpu")[0])
    params = load_params(source, plain_specs(tensors), plain_map(tensors),
                         put=lambda name, array: jax.device_put(array, cpu))
    assert [array.unsafe_buffer_pointer() for array in params.values()] == buffers
    assert all(address % 64 == 0 for address in buffers)


SHARDED = """
import sys
import jax, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxllm.weights import ParamSpec, load_params, resolve

source = resolve(sys.argv[1])
mesh = jax.make_mesh((2, 2), ("data", "tensor"))
specs = {name: ParamSpec(info.shape, np.float32, ("out", "in")) for name, info in source.tensors.items()}
rules = {"rows": PartitionSpec("tensor", None), "columns": PartitionSpec(None, "tensor"),
         "both": PartitionSpec("data", "tensor"), "copies": PartitionSpec()}
params = load_params(source, specs, {name: [name] for name in specs},
                     put=lambda name, array: jax.device_put(array, NamedSharding(mesh, rules[name])))
for name, array in params.items():
    assert array.sharding == NamedSharding(mesh, rules[name]), name
    assert len(array.addressable_shards) == 4
    for shard in array.addressable_shards:
        np.testing.assert_array_equal(shard.data, source.read(name)[shard.index])
"""


def test_shards_on_several_devices_hold_their_part(tmp_path: Path):
    """In a process of its own with four virtual devices."""
    values = np.random.default_rng(0).standard_normal((64, 48), np.float32)
    folder = write_hf_folder(tmp_path / "model", dict.fromkeys(("rows", "columns", "both", "copies"), values))
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run([sys.executable, "-c", SHARDED, str(folder)], capture_output=True, text=True, check=False,
                         env=environment)
    assert run.returncode == 0, run.stderr


MEMORY = """
import re, sys
from pathlib import Path
import jax, numpy as np
from jaxllm.weights import ParamSpec, load_params, resolve

def peak():
    # Not getrusage: its maximum begins with that of the process that started this one.
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024

def load(path):
    source = resolve(path)
    names = [name for name in source.tensors if "embed" not in name]
    specs = {name: ParamSpec(source.tensors[name].shape, jax.numpy.bfloat16, (None, None)) for name in names}
    params = load_params(source, specs, {name: [name] for name in names}, ignore=["embed"], threads=2)
    return sum(array.nbytes for array in params.values()), params

load(sys.argv[1])
before = peak()
nbytes, params = load(sys.argv[2])
print(nbytes, peak() - before)
"""


def write_large(path: Path, kind: str, layers: int) -> Path:
    """``layers`` matrices of 1024 x 2048, as safetensors of that dtype or as a GGUF file of that type."""
    values = np.random.default_rng(0).standard_normal((1024, 2048), np.float32)
    names = [f"model.layers.{layer}.mlp.up_proj.weight" for layer in range(layers)]
    if kind in ("float32", "bfloat16"):
        return write_hf_folder(path, {name: values.astype(jnp.dtype(kind)) + 0 for name in names})
    import gguf
    from weights.checkpoint_files import LLAMA_METADATA, stored, write_gguf

    data = stored(values, Type[kind])
    tensors = {f"blk.{layer}.ffn_up.weight": (data, Type[kind]) for layer in range(layers)}
    embedding = {"token_embd.weight": (np.zeros((8, 256), np.float32), gguf.GGMLQuantizationType.F32)}
    return write_gguf(path.with_suffix(".gguf"), tensors | embedding, LLAMA_METADATA)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
@pytest.mark.parametrize("kind", ["Q8_0", "float32", pytest.param("bfloat16", marks=pytest.mark.sweep)])
def test_peak_memory_is_the_model_and_at_most_its_largest_tensor(tmp_path: Path, kind: str):
    """In a process of its own, after a first small load that brings in code and thread stacks (and whose one tensor's
    memory may be used again). The model takes 48 MiB, its file 25 to 96, a float32 copy of one tensor 8.

    Tolerance: 2 MiB for what the interpreter and the allocator take besides.
    """
    # pytest keeps tmp_path for three runs, which is too long for files of this size.
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        small, large = write_large(Path(folder, "small"), kind, 1), write_large(Path(folder, "large"), kind, 12)
        run = subprocess.run([sys.executable, "-c", MEMORY, str(small), str(large)], capture_output=True, text=True,
                             check=False)
    assert run.returncode == 0, run.stderr
    model, used = map(int, re.findall(r"\d+", run.stdout))
    assert model == 12 * 1024 * 2048 * 2
    largest = model // 12
    print(f"model {model >> 20} MiB, peak {used / 2**20:.1f} MiB")
    assert model - largest <= used <= model + largest + (2 << 20)
