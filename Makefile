# Everything runs in .venv, which the first command makes. `make` alone prints this list.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PYTEST_ARGS ?=
BENCH_ARGS ?=

# No outgoing calls from Flower; one thread per process, so that tests neither crowd two cores nor
# depend on how many there are.
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help install demo test test-faults bench lint format clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## train on FilmTrust (or synthetic data), show metrics and recommendations
	$(BIN)/python -m fedrecgel demo

test: $(INSTALLED) ## run all tests; PYTEST_ARGS="-k name" for some
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

test-faults: $(INSTALLED) ## break a deployment in every way that we know (some twenty minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m faults tests/faults $(PYTEST_ARGS)

bench: $(INSTALLED) ## measure speed and memory (some five minutes); BENCH_ARGS=--quick for less
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks $(BENCH_ARGS)

lint: $(INSTALLED) ## check format, rules and types
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m ruff check
	$(BIN)/python -m mypy -p fedrecgel -p benchmarks

format: $(INSTALLED) ## rewrite the code in the project's format
	$(BIN)/python -m ruff format
	$(BIN)/python -m ruff check --fix

install: $(INSTALLED) ## make .venv and install the package with what development needs

clean: ## remove .venv, build results and caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found: install Python 3.11 or newer, or say which: make PYTHON=/path/to/python" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $$($(PYTHON) -V 2>&1) is too old: Python 3.11 or newer is needed, say which: make PYTHON=python3.11" >&2; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "Installing into $(VENV) (some minutes the first time) ..."
	$(BIN)/python -m pip install -qq -c constraints.txt -e '.[dev,serve,simulation]'
	@touch $@
