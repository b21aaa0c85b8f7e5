# `make demo` and `make test` do all their own set-up: a virtual environment, the pinned install, then the work.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST_ARGS ?= -n auto --dist loadfile

# One thread a process: small models lose by more, and so do tests that run side by side.
export OMP_NUM_THREADS ?= 1
export FLWR_TELEMETRY_ENABLED ?= 0
export FLWR_DISABLE_UPDATE_CHECK ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0
export MPLBACKEND ?= Agg

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint format install clean

help:
	@echo "make demo       install what is needed, then compare seven methods on two data sets (about 90 s)"
	@echo "make test       install what is needed, then the quick tests"
	@echo "make test-slow  the tests that reproduce papers, start Ray, or run a consortium"
	@echo "make lint       ruff and mypy"
	@echo "make clean      remove the virtual environment and all caches"

# torch comes first and pinned, so that torchvision and medmnist do not choose another build of it.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "fedsmall needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(READY)

install: $(READY)

demo: $(READY)
	$(BIN)/fedsmall demo

test: $(READY)
	$(BIN)/python -m pytest -m "not slow and not docker" $(PYTEST_ARGS)

test-slow: $(READY)
	$(BIN)/python -m pytest -m "slow and not docker" --timeout=3600

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
