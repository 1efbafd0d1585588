"""Hub models, with ``huggingface_hub`` played by a fake or working offline on a real cache layout; no network."""

from __future__ import annotations

import types
from collections.abc import Sequence
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils import filter_repo_objects
from weights.checkpoint_files import llama_tensors, write_hf_folder, write_llama_gguf

from jaxllm.errors import CheckpointError, ModelNotFoundError
from jaxllm.weights import ConfigSource, GGUFSource, SafetensorsSource, resolve

SHA = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """One repository; ``snapshot_download`` copies the files that match into a snapshot folder, as the real one."""

    def __init__(self, repository: Path, cache: Path) -> None:
        self.repository, self.snapshot = repository, cache / SHA
        self.revisions: list[str | None] = []

    def files(self) -> list[str]:
        return sorted(
            file.relative_to(self.repository).as_posix() for file in self.repository.rglob("*") if file.is_file()
        )

    def downloaded(self) -> list[str]:
        return sorted(file.relative_to(self.snapshot).as_posix() for file in self.snapshot.rglob("*") if file.is_file())

    def snapshot_download(
        self, repo: str, *, revision: str | None, allow_patterns: Sequence[str], ignore_patterns: Sequence[str] | None
    ) -> str:
        assert repo == "org/name"
        self.revisions.append(revision)
        self.snapshot.mkdir(exist_ok=True)
        for name in filter_repo_objects(self.files(), allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            (self.snapshot / name).parent.mkdir(parents=True, exist_ok=True)
            (self.snapshot / name).write_bytes((self.repository / name).read_bytes())
        return str(self.snapshot)

    def list_repo_files(self, repo: str, *, revision: str | None) -> list[str]:
        return self.files()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    (tmp_path / "repository").mkdir()
    (tmp_path / "cache").mkdir()
    fake = FakeHub(tmp_path / "repository", tmp_path / "cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fake.snapshot_download)
    monkeypatch.setattr(huggingface_hub, "HfApi", lambda: fake)
    return fake


def clutter(repository: Path) -> None:
    for name in ("pytorch_model.bin", "consolidated.safetensors", "original/consolidated.00.pth", "onnx/model.onnx",
                 "onnx/config.json", "README.md", "tf_model.h5", "fp16/model.safetensors"):
        (repository / name).parent.mkdir(exist_ok=True)
        (repository / name).write_bytes(b"x")


@pytest.mark.parametrize("shards", [0, 2])
def test_only_the_files_needed_are_fetched(hub: FakeHub, shards: int):
    write_hf_folder(hub.repository, shards=shards)
    needed = {"generation_config.json": "{}", "tokenizer.json": "{}", "tokenizer_config.json": "{}",
              "chat_template.jinja": "x"}
    for name, content in needed.items():
        (hub.repository / name).write_text(content)
    wanted = hub.files()
    clutter(hub.repository)
    source = resolve("org/name")
    assert hub.downloaded() == wanted
    assert isinstance(source, SafetensorsSource)
    assert source.name == "org/name"
    assert set(source.tensors) == set(llama_tensors())


def test_the_revision_is_asked_for_and_its_commit_after_that(hub: FakeHub):
    write_hf_folder(hub.repository)
    resolve("org/name", revision="v2")
    assert hub.revisions == ["v2", SHA]


def test_weights_under_another_name_are_found(hub: FakeHub):
    write_hf_folder(hub.repository)
    (hub.repository / "model.safetensors").rename(hub.repository / "weights.safetensors")
    clutter(hub.repository)
    assert set(resolve("org/name").tensors) == set(llama_tensors())
    assert hub.downloaded() == ["config.json", "weights.safetensors"]


def test_a_pickle_only_repository_is_refused_without_fetching_it(hub: FakeHub):
    write_hf_folder(hub.repository)
    (hub.repository / "model.safetensors").rename(hub.repository / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"org/name has its weights only as pickled files \(pytorch_model.bin\)"):
        resolve("org/name")
    assert hub.downloaded() == ["config.json"]


def test_a_repository_of_gguf_files_asks_for_one_and_takes_it(hub: FakeHub):
    for name in ("model-Q4_K_M.gguf", "model-Q8_0.gguf"):
        write_llama_gguf(hub.repository / name)
    with pytest.raises(ModelNotFoundError, match=r"'org/name:model-Q4_K_M.gguf'.* model-Q4_K_M.gguf, model-Q8_0.gguf"):
        resolve("org/name")
    for chosen in ("org/name:q8_0", "org/name:model-Q8_0.gguf"):
        source = resolve(chosen)
        assert isinstance(source, GGUFSource)
        assert source.path.name == "model-Q8_0.gguf"
        assert source.name == chosen
    assert hub.downloaded() == ["model-Q8_0.gguf"]


@pytest.mark.parametrize(("file", "message"), [
    ("model", r"several GGUF files that match 'model': model-Q4_K_M.gguf, model-Q8_0.gguf"),
    ("Q5_0", r"no GGUF file that matches 'Q5_0': model-Q4_K_M.gguf, model-Q8_0.gguf"),
])
def test_a_gguf_name_that_does_not_choose_one_lists_them(hub: FakeHub, file: str, message: str):
    for name in ("model-Q4_K_M.gguf", "model-Q8_0.gguf"):
        write_llama_gguf(hub.repository / name)
    with pytest.raises(ModelNotFoundError, match=message):
        resolve(f"org/name:{file}")


def test_all_parts_of_a_split_gguf_are_fetched(hub: FakeHub):
    (hub.repository / "q8").mkdir()
    for part in (1, 2):
        (hub.repository / f"q8/m-q8-{part:05d}-of-00002.gguf").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        resolve("org/name:q8")
    assert hub.downloaded() == ["q8/m-q8-00001-of-00002.gguf", "q8/m-q8-00002-of-00002.gguf"]


def http_error(kind: type[errors.HfHubHTTPError]) -> Exception:
    return kind("from the hub", response=types.SimpleNamespace(headers={}, request=None))  # type: ignore[arg-type]


@pytest.mark.parametrize(("error", "message"), [
    (http_error(errors.RepositoryNotFoundError), "the hub has no model 'org/name' at revision 'v1'.*check the name"),
    (http_error(errors.GatedRepoError), "gated: accept its terms.*HF_TOKEN"),
    (http_error(errors.RevisionNotFoundError), "no 'org/name' at revision 'v1': give a branch"),
    (http_error(errors.HfHubHTTPError), "the hub did not give 'org/name'.*from the hub"),
    (errors.LocalEntryNotFoundError("not cached"), "neither a local path nor completely in the cache.*HF_HUB_OFFLINE"),
    (errors.OfflineModeIsEnabled("offline"), "hub cannot be reached.*local folder or .gguf file"),
    (errors.HTTPError("no route to host"), "hub cannot be reached"),
])
def test_what_the_hub_answers_becomes_advice(monkeypatch: pytest.MonkeyPatch, error: Exception, message: str):
    def fail(*arguments: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelNotFoundError, match=message):
        resolve("org/name", revision="v1")


@pytest.mark.parametrize("name", ["not a hub id", "a--b", "smol/lm..2:Q8_0"])
def test_invalid_ids_list_the_packaged_names(name: str):
    listed = r"no packaged model \(SmolLM2-135M-Instruct, gemma-3-270m\) and no valid hub id"
    with pytest.raises(ModelNotFoundError, match=listed):
        resolve(name)


def test_a_colon_without_a_file_is_refused(hub: FakeHub):
    with pytest.raises(ModelNotFoundError, match="names no GGUF file after the colon"):
        resolve("org/name:")


@pytest.fixture
def offline_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A snapshot folder of "org/name" in an otherwise empty cache, in ``huggingface_hub``'s offline mode."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    root = tmp_path / "models--org--name"
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(SHA)
    snapshot = root / "snapshots" / SHA
    snapshot.mkdir(parents=True)
    return snapshot


def test_offline_a_cached_model_loads(offline_cache: Path):
    write_hf_folder(offline_cache, shards=2)
    assert set(resolve("org/name").tensors) == set(llama_tensors())


def test_offline_a_cached_gguf_file_loads(offline_cache: Path):
    write_llama_gguf(offline_cache / "model-Q8_0.gguf")
    assert resolve("org/name:Q8_0").path == offline_cache / "model-Q8_0.gguf"


def test_offline_a_half_cached_model_names_the_shard(offline_cache: Path):
    write_hf_folder(offline_cache, shards=2)
    (offline_cache / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1 of its 2 weight files: model-00002-of-00002.safetensors"):
        resolve("org/name")


def test_offline_a_model_that_is_not_cached_says_so(offline_cache: Path):
    for name in ("org/other", "org/other:Q8_0"):
        with pytest.raises(ModelNotFoundError, match=f"'{name}' is neither a local path nor completely in the cache"):
            resolve(name)
    with pytest.raises(ModelNotFoundError, match="or use 'SmolLM2-135M-Instruct'"):
        resolve("HuggingFaceTB/SmolLM2-135M-Instruct")


def test_a_description_needs_no_weights_until_they_are_there(hub: FakeHub):
    write_hf_folder(hub.repository)
    (hub.repository / "tokenizer.json").write_text("{}")
    source = resolve("org/name", download_weights=False)
    assert hub.downloaded() == ["config.json", "tokenizer.json"]
    assert isinstance(source, ConfigSource)
    assert (source.name, dict(source.tensors)) == ("org/name", {})
    resolve("org/name")
    assert set(resolve("org/name", download_weights=False).tensors) == set(llama_tensors())


def test_a_description_of_gguf_files_asks_for_one(hub: FakeHub):
    write_llama_gguf(hub.repository / "model-Q8_0.gguf")
    with pytest.raises(ModelNotFoundError, match=r"'org/name:model-Q8_0\.gguf'"):
        resolve("org/name", download_weights=False)
