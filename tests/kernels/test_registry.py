"""Which implementation runs, and why."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh

from pallas_kernels import registry


@pytest.fixture
def operation(monkeypatch):
    monkeypatch.setattr(registry, "_operations", {})
    registry.register("twice", "slow", lambda: lambda x: x + x, summary="adds")
    registry.register("twice", "fast", lambda: lambda x: 2 * x, summary="multiplies", default_on=("cpu",))
    registry.register("twice", "later", lambda: lambda x: x << 1, summary="shifts", default_on=("cpu", "gpu"))
    return "twice"


def test_the_first_registered_for_the_platform_is_the_default(operation):
    assert registry.choose(operation, platform="cpu").implementation.name == "fast"
    assert registry.choose(operation, platform="gpu").implementation.name == "later"


def test_the_environment_overrides_the_default_and_the_argument_overrides_both(operation, monkeypatch):
    monkeypatch.setenv("PALLAS_KERNELS_TWICE", "slow")
    assert registry.choose(operation).reason == "PALLAS_KERNELS_TWICE is set"
    assert registry.choose(operation).implementation.name == "slow"
    assert registry.choose(operation, "later").implementation.name == "later"


def test_explain_names_the_choice_the_reason_and_the_rest(operation):
    text = registry.explain(operation, platform="cpu")
    assert text.splitlines() == [
        "twice: fast (the default on cpu)",
        "   slow: adds [only by name]",
        " * fast: multiplies [default on cpu]",
        "   later: shifts [default on cpu, gpu]",
    ]


@pytest.fixture
def choosy(monkeypatch):
    monkeypatch.setattr(registry, "_operations", {})
    missing = ["no compiler"]
    registry.register("twice", "native", lambda: lambda x: 2 * x, summary="native", default_on=("cpu",),
                      unavailable=lambda: missing[0], unsupported=lambda x: "x is a number" if x == "a" else None)
    registry.register("twice", "xla", lambda: lambda x: x + x, summary="adds", default_on=("cpu",))
    return missing


def test_what_is_not_available_here_is_passed_over_and_said(choosy):
    assert registry.choose("twice", platform="cpu").implementation.name == "xla"
    assert registry.implementations("twice") == ("xla",)
    assert "native [default on cpu; not available: no compiler]" in registry.explain("twice", platform="cpu")
    with pytest.raises(ValueError, match=r"implementation='native' cannot compute this twice: no compiler"):
        registry.choose("twice", "native")


def test_operands_that_the_default_does_not_take_go_to_the_next(choosy, monkeypatch):
    choosy[0] = None
    assert registry.choose("twice", platform="cpu", operands={"x": 1}).implementation.name == "native"
    assert registry.choose("twice", platform="cpu", operands={"x": "a"}).implementation.name == "xla"
    monkeypatch.setenv("PALLAS_KERNELS_TWICE", "native")
    with pytest.raises(ValueError, match=r"PALLAS_KERNELS_TWICE='native' cannot compute this twice: x is a number"):
        registry.choose("twice", operands={"x": "a"})


def test_unknown_names_are_answered_with_what_exists(operation, monkeypatch):
    with pytest.raises(ValueError, match=r"operation='thrice' does not exist; there are twice"):
        registry.choose("thrice")
    with pytest.raises(ValueError, match=r"implementation='quick'.*there are slow, fast, later"):
        registry.choose(operation, "quick")
    with pytest.raises(ValueError, match=r"no default on platform='tpu'; choose one of slow, fast, later"):
        registry.choose(operation, platform="tpu")
    monkeypatch.setenv("PALLAS_KERNELS_TWICE", "quick")
    with pytest.raises(ValueError, match=r"PALLAS_KERNELS_TWICE='quick'.*there are slow, fast, later"):
        registry.choose(operation)


@pytest.mark.parametrize(("variable", "answer"), [
    ("PALLAS_KERNELS_TWISE", r"; did you mean PALLAS_KERNELS_TWICE\?"),
    ("PALLAS_KERNELS_CPU_INSTRUCTIONS", r"; did you mean PALLAS_KERNELS_CPU_INSTRUCTION_SET\?"),
    ("PALLAS_KERNELS_XYZ", ""),
])
def test_a_variable_of_the_environment_that_nothing_reads_is_an_error(operation, monkeypatch, variable, answer):
    monkeypatch.setenv(variable, "slow")
    known = "PALLAS_KERNELS_TWICE, PALLAS_KERNELS_CPU_LIBRARY, "
    with pytest.raises(ValueError, match=rf"^{variable}='slow' means nothing; there are {known}.*D{answer}$"):
        registry.choose(operation)


def test_registering_twice_or_for_an_unknown_platform_is_refused(operation):
    with pytest.raises(ValueError, match="already has an implementation 'slow'"):
        registry.register(operation, "slow", lambda: lambda x: x, summary="again")
    with pytest.raises(ValueError, match="platforms are cpu, gpu, tpu"):
        registry.register(operation, "new", lambda: lambda x: x, summary="new", default_on=("cuda",))


@pytest.mark.parametrize("name", registry.operations())
def test_every_operation_has_an_oracle_and_a_default_everywhere(name):
    assert "oracle" in registry.implementations(name)
    for platform in registry.PLATFORMS:
        chosen = registry.choose(name, platform=platform)
        assert chosen.implementation.name != "oracle"
        assert callable(chosen.implementation.load())
    assert callable(registry.choose(name, "oracle").implementation.load())


def test_programs_name_the_implementation_that_they_hold(operation):
    def program(x):
        return registry.choose(operation, "fast").run(x)

    text = jax.jit(program).lower(jnp.ones(3)).as_text(debug_info=True)
    assert f"{operation}.fast" in text
    assert f"{operation}.slow" not in text


def test_the_package_does_not_import_jaxllm():
    code = (
        "import sys, pallas_kernels\n"
        "from pallas_kernels import registry\n"
        "for op in registry.operations():\n"
        "    for name in registry.implementations(op):\n"
        "        registry.choose(op, name).implementation.load()\n"
        "sys.exit(any(m.split('.')[0] == 'jaxllm' for m in sys.modules))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_programs_for_a_device_that_is_described_get_what_is_the_default_there(operation):
    device = AbstractDevice("NVIDIA H200", 132, "gpu")
    with use_abstract_mesh(AbstractMesh((1,), ("x",), axis_types=AxisType.Auto, abstract_device=device)):
        assert registry.choose(operation).implementation.name == "later"
    assert registry.choose(operation).implementation.name == "fast"
