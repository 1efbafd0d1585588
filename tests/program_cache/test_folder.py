"""Where compiled programs are kept, and how much of them."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from jaxllm.errors import ParameterError
from jaxllm.program_cache.folder import cache_bytes, cache_folder, folder_of_jax


@pytest.fixture
def environment(monkeypatch):
    for name in ("JAXLLM_COMPILATION_CACHE", "JAXLLM_COMPILATION_CACHE_BYTES", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield monkeypatch
    jax.config.update("jax_compilation_cache_dir", before)


def test_by_default_it_is_in_the_users_cache(environment):
    assert cache_folder() == Path("~/.cache/jaxllm/programs").expanduser()
    environment.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/jaxllm/programs")


def test_where_jax_has_one_that_serves(environment):
    jax.config.update("jax_compilation_cache_dir", "/theirs")
    environment.setenv("JAXLLM_COMPILATION_CACHE", "/ours")
    assert (cache_folder(), folder_of_jax()) == (None, "/theirs")
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        assert (cache_folder(), folder_of_jax()) == (Path("/ours"), None)
    finally:
        jax.config.update("jax_enable_compilation_cache", True)


@pytest.mark.parametrize(("value", "folder"), [("/ours", Path("/ours")), ("~/ours", Path("~/ours").expanduser()),
                                               ("off", None), ("OFF", None), ("0", None), ("", None)])
def test_the_environment_chooses(environment, value, folder):
    environment.setenv("JAXLLM_COMPILATION_CACHE", value)
    assert cache_folder() == folder


def test_its_size_is_limited_as_the_environment_says(environment):
    assert cache_bytes() == 512 << 20
    environment.setenv("JAXLLM_COMPILATION_CACHE_BYTES", "2G")
    assert cache_bytes() == 2 << 30
    environment.setenv("JAXLLM_COMPILATION_CACHE_BYTES", "many")
    with pytest.raises(ParameterError, match="JAXLLM_COMPILATION_CACHE_BYTES='many'"):
        cache_bytes()
