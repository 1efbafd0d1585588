"""Executables are found again, by text or by description, give the same results, and are gone when they are dropped."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from support import greedy, prompts, run, tiny_engine, tiny_model

from jaxllm.engine import build
from jaxllm.engine.sizes import EngineSizes
from jaxllm.program_cache import executables, trust
from jaxllm.program_cache.entries import Entries
from jaxllm.program_cache.executables import ExecutableCache
from jaxllm.runner.keys import Key

TESTS = Path(__file__).parents[1]
REQUESTS = [(prompt, greedy(4)) for prompt in prompts(3)]


@pytest.fixture(autouse=True)
def _no_cache_of_jax(monkeypatch):
    """The tests' own run has one, in whose place jaxllm's is tested here."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)  # of processes started here
    yield
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


@pytest.fixture
def entries(tmp_path):
    return Entries(tmp_path / "programs", 1 << 30)


@pytest.fixture
def trusted(monkeypatch):
    monkeypatch.setattr(trust, "_process", trust._Process(sources_trusted=True))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of the engines of a test."""
    monkeypatch.setenv("JAXLLM_COMPILATION_CACHE", str(tmp_path / "programs"))
    return tmp_path / "programs"


def lowering(factor=2.0, donated=0):
    calls = []

    def lower():
        calls.append(factor)
        jitted = jax.jit(lambda values, more: (values * factor, {"sum": more["x"] + 1}), donate_argnums=donated)
        shape = jax.ShapeDtypeStruct((300, 400), jnp.float32)
        return jitted.lower(shape, {"x": shape})

    return lower, calls


def call(executable):
    values, sums = executable(jnp.ones((300, 400)), {"x": np.zeros((300, 400), np.float32)})
    return float(values[0, 0]), float(sums["sum"][0, 0])


def test_the_second_time_it_is_loaded_and_computes_the_same(entries):
    lower, _ = lowering()
    first, second = ExecutableCache(entries), ExecutableCache(entries)
    assert call(first.get("it", lower, None)) == call(second.get("it", lower, None)) == (2.0, 1.0)
    assert (first.num_compiled, first.num_loaded) == (1, 0)
    assert (second.num_compiled, second.num_loaded) == (0, 1)


def test_another_program_is_not_taken_for_it(entries):
    cache = ExecutableCache(entries)
    assert call(cache.get("it", lowering(2.0)[0], None))[0] == 2.0
    assert call(cache.get("it", lowering(3.0)[0], None))[0] == 3.0
    assert cache.num_compiled == 2


def test_one_with_another_argument_that_it_does_not_use_is_not_taken_for_it(entries):
    def lower(size):
        unused = jax.ShapeDtypeStruct((size,), jnp.float32)
        return jax.jit(lambda tree: tree["x"] + 1).lower({"x": jax.ShapeDtypeStruct((), jnp.float32), "y": unused})

    assert lower(3).as_text() == lower(4).as_text()
    cache = ExecutableCache(entries)
    for size in (3, 4):
        assert cache.get("it", lambda size=size: lower(size), None)({"x": jnp.ones(()), "y": jnp.ones(size)}) == 2


def test_a_loaded_executable_still_reuses_what_is_donated(entries):
    lower, _ = lowering()
    ExecutableCache(entries).get("it", lower, None)
    executable = ExecutableCache(entries).get("it", lower, None)
    given = jnp.ones((300, 400)) + 1
    place = given.unsafe_buffer_pointer()
    values, _ = executable(given, {"x": jnp.zeros((300, 400))})
    assert values.unsafe_buffer_pointer() == place
    assert given.is_deleted()


def test_without_a_folder_everything_is_compiled():
    cache = ExecutableCache(None)
    assert call(cache.get("it", lowering()[0], ("it",))) == (2.0, 1.0)
    assert (cache.num_compiled, cache.num_loaded) == (1, 0)


@pytest.mark.usefixtures("trusted")
def test_by_its_description_nothing_is_traced(entries):
    ExecutableCache(entries).get("it", lowering()[0], ("it", 1))
    lower, calls = lowering()
    assert call(ExecutableCache(entries).get("it", lower, ("it", 1))) == (2.0, 1.0)
    assert calls == []
    ExecutableCache(entries).get("it", lower, ("it", 2))
    assert calls == [2.0]


def test_where_sources_are_not_trusted_a_description_is_not_either(entries):
    ExecutableCache(entries).get("it", lowering(2.0)[0], ("it", 1))
    assert call(ExecutableCache(entries).get("it", lowering(3.0)[0], ("it", 1)))[0] == 3.0


@pytest.mark.usefixtures("trusted")
def test_a_description_whose_executable_was_evicted_is_traced_again(entries):
    ExecutableCache(entries).get("it", lowering()[0], ("it", 1))
    largest = max(entries.folder.iterdir(), key=lambda file: file.stat().st_size)
    largest.unlink()
    cache = ExecutableCache(entries)
    assert call(cache.get("it", lowering()[0], ("it", 1))) == (2.0, 1.0)
    assert cache.num_compiled == 1
    assert largest.exists()


@pytest.mark.usefixtures("trusted")
def test_what_cannot_be_loaded_is_compiled_again_and_replaced(entries, caplog):
    ExecutableCache(entries).get("it", lowering()[0], ("it", 1))
    largest = max(entries.folder.iterdir(), key=lambda file: file.stat().st_size)
    entries.put(largest.stem, b"whole, but no executable")
    broken = ExecutableCache(entries)
    with caplog.at_level(logging.WARNING, "jaxllm"):
        assert call(broken.get("it", lowering()[0], ("it", 1))) == (2.0, 1.0)
    assert "cannot be loaded" in caplog.text
    assert broken.num_compiled == 1
    repaired = ExecutableCache(entries)
    repaired.get("it", lowering()[0], ("it", 1))
    assert (repaired.num_compiled, repaired.num_loaded) == (0, 1)


def test_a_program_that_calls_python_is_never_kept(entries):
    def lower():
        shape = jax.ShapeDtypeStruct((2,), jnp.float32)
        return jax.jit(lambda x: jax.pure_callback(lambda x: x * 3, shape, x)).lower(shape)

    for _ in range(2):
        cache = ExecutableCache(entries)
        assert cache.get("it", lower, None)(jnp.ones(2)).tolist() == [3.0, 3.0]
        assert cache.num_compiled == 1
    assert entries.contents().files == 0


_FROM_JAX = """
import sys
from pathlib import Path
import jax
from test_executables import call, lowering
from jaxllm.program_cache.entries import Entries
from jaxllm.program_cache.executables import ExecutableCache

lowering()[0]().compile()
assert any(Path(sys.argv[1], "theirs").iterdir())
jax.config.update("jax_compilation_cache_dir", None)  # which JAX notices only when its cache is reset
jax.clear_caches()
hits = []
jax.monitoring.register_event_listener(lambda event, **_: event.endswith("/cache_hits") and hits.append(event))
entries = Entries(Path(sys.argv[1], "ours"), 1 << 30)
for count in (1, 2):
    executable = ExecutableCache(entries).get("it", lowering()[0], None)
    assert len(hits) == count, hits
    assert entries.contents().files == 0
    assert call(executable) == (2.0, 1.0)
    hits = hits[:count]
"""


def test_what_came_from_the_cache_of_jax_is_not_kept(tmp_path):
    # Serialized again, it would lack its functions. In a process of its own: JAX's cache, and what else it remembers,
    # is one for a whole process, and here nothing before this has used it.
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "theirs"),
                   "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
                   "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(TESTS)])}
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", "-c", _FROM_JAX, str(tmp_path)], env=environment,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_context_of_the_caller_does_not_change_what_is_traced():
    found = []

    def lower():
        found.append(jax.config.jax_default_matmul_precision)
        return lowering()[0]()

    outside = jax.config.jax_default_matmul_precision
    with jax.default_matmul_precision("highest"):
        ExecutableCache(None).get("it", lower, None)
    assert found == [outside]


def test_a_slow_compilation_is_told_where_logging_is_not_set_up(monkeypatch, capfd):
    class Slow:
        def compile(self):
            time.sleep(0.3)

    monkeypatch.setattr(executables, "SLOW_SECONDS", 0.05)
    monkeypatch.setattr(logging.getLogger("jaxllm"), "propagate", True)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    ExecutableCache(None).get("layers for 8 rows", Slow, None)
    assert capfd.readouterr().err == "compiling layers for 8 rows ...\n"


@pytest.mark.usefixtures("trusted", "folder")
def test_an_engine_finds_all_its_programs_by_description_and_gives_the_same_bits():
    first = tiny_engine()
    expected = [output.outputs[0].token_ids for output in run(first, REQUESTS)]
    second = tiny_engine()
    assert [output.outputs[0].token_ids for output in run(second, REQUESTS)] == expected
    made, found = first._runner.programs, second._runner.programs
    assert made.cache.num_compiled == made.num_executables == found.cache.num_loaded
    assert (found.cache.num_compiled, dict(found.traces)) == (0, {})


@pytest.mark.usefixtures("trusted", "folder")
@pytest.mark.parametrize(("limit", "expected"), [(build.FEW_WEIGHT_BYTES, [True, False]), (0, [False, False])])
def test_few_weights_wait_for_programs_that_must_be_compiled_and_for_no_others(limit, expected, monkeypatch):
    model, params = tiny_model()
    sizes = EngineSizes(max_model_len=64, max_num_seqs=2, kv_cache_bytes=1 << 20)
    keys = [Key("update_table"), Key("begin", 8)]
    events = []
    wait = build.futures.wait
    monkeypatch.setattr(build.futures, "wait", lambda compiling: events.append("wait") or wait(compiling))
    monkeypatch.setattr(build, "FEW_WEIGHT_BYTES", limit)
    found = []
    for _ in range(2):
        events.clear()
        build.build_engine(model, lambda: events.append("load") or params, sizes, compile_first=lambda _: keys)
        assert events[-1] == "load"
        found.append(events == ["wait", "load"])
    assert found == expected


def test_what_must_be_compiled_is_known_where_sources_are_trusted_alone(entries, monkeypatch):
    lower, _ = lowering()
    cache = ExecutableCache(entries)
    assert not cache.must_compile(("it", 1))
    monkeypatch.setattr(trust, "_process", trust._Process(sources_trusted=True))
    assert cache.must_compile(("it", 1))
    assert not cache.must_compile(None)
    assert not ExecutableCache(None).must_compile(("it", 1))
    cache.get("it", lower, ("it", 1))
    assert not cache.must_compile(("it", 1))
    assert cache.must_compile(("it", 2))


def test_engines_of_other_models_and_sizes_have_other_descriptions():
    changes = [{}, {"max_num_seqs": 4}, {"block_size": 16}, {"kv_cache_bytes": 1 << 19}, {"dtype": "bfloat16"},
               {"changes": {"norm_eps": 1e-3}}, {"changes": {"num_layers": 1}}]
    engines = [tiny_engine(**change) for change in changes]
    for number in range(len(engines[0]._runner.programs.all_keys())):
        described = [programs._describe(programs.all_keys()[number])
                     for programs in (engine._runner.programs for engine in engines)]
        assert len(set(map(str, described))) == len(changes)
    keys = engines[0]._runner.programs.all_keys()
    assert len({str(engines[0]._runner.programs._describe(key)) for key in keys}) == len(keys)


def test_functions_of_the_user_cannot_be_described():
    engine = tiny_engine(logits_processors={"shift": lambda logits, state: logits + 1})
    programs = engine._runner.programs
    assert {programs._describe(key) for key in programs.all_keys()} == {None}


def test_the_seed_of_an_engine_is_in_no_program():
    programs = [tiny_engine(seed=seed)._runner.programs for seed in (None, 1)]
    assert programs[0]._describe(programs[0].all_keys()[0]) == programs[1]._describe(programs[1].all_keys()[0])


_DESCRIPTIONS = """
from support import tiny_engine
programs = tiny_engine()._runner.programs
print(hash(tuple(map(str, (programs._describe(key) for key in programs.all_keys())))))
"""


def test_descriptions_are_the_same_in_every_process():
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    found = {subprocess.run([sys.executable, "-c", _DESCRIPTIONS], cwd=TESTS, capture_output=True, text=True,
                            check=True, env=environment).stdout for _ in range(2)}
    assert len(found) == 1


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="memory maps are counted on Linux only")
def test_thirty_engines_one_after_another_leave_no_executables_behind(folder):
    def maps():
        gc.collect()
        return Path("/proc/self/maps").read_bytes().count(b"\n")

    def one(cached):
        with pytest.MonkeyPatch.context() as patch:
            if not cached:
                patch.setenv("JAXLLM_COMPILATION_CACHE", "off")
            engine = tiny_engine(changes={"num_layers": 1}, max_num_batched_tokens=16)
            run(engine, [([9, 10, 11], greedy(2))])
            return engine._runner.programs.cache.num_compiled

    assert one(cached=True) > 0
    one(cached=True)
    before = maps()
    # Most are loaded, as that takes a tenth of the time; some compiled, whose way through JAX's caches is another.
    compiled = [one(cached=number % 15 != 0) for number in range(30)]
    assert [count > 0 for count in compiled] == [number % 15 == 0 for number in range(30)]
    # One engine has about as many as are allowed here for all.
    assert maps() < before + 150
