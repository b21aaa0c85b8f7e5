# `make demo` and `make test` do all their own set-up: a virtual environment, the pinned install, then the work.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST_ARGS ?= -n auto --dist loadfile
SLOW_ARGS ?= -n 2 --dist loadfile
QUICK := -m "not slow and not docker"

# One thread a process: small models lose by more, and so do tests that run side by side.
export OMP_NUM_THREADS ?= 1
export FLWR_TELEMETRY_ENABLED ?= 0
export FLWR_DISABLE_UPDATE_CHECK ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0
export MPLBACKEND ?= Agg

.DEFAULT_GOAL := help
.PHONY: help demo test coverage test-slow test-gpu lint format install dist release clean

help:
	@echo "make demo       install what is needed, then compare seven methods on two data sets (about 90 s)"
	@echo "make test       install what is needed, then the quick tests"
	@echo "make coverage   the quick tests, and how much of the code they run; fails below the floor of pyproject.toml"
	@echo "make test-slow  the tests that reproduce papers, start Ray, or run a consortium (about ten minutes)"
	@echo "make test-gpu   the tests that compare a GPU with the CPU; skipped where torch sees none"
	@echo "make lint       ruff and mypy"
	@echo "make format     let ruff mend what it can"
	@echo "make install    only the virtual environment, with all that development needs"
	@echo "make dist       the wheel, in dist/"
	@echo "make release    the wheel, all that it needs with digests, and the bill of materials (SBOM), in dist/"
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
	$(BIN)/python -m pytest $(QUICK) $(PYTEST_ARGS)

coverage: $(READY)
	$(BIN)/python -m pytest $(QUICK) $(PYTEST_ARGS) --cov --cov-report=term

# What compares processor times comes after the rest, alone.
test-slow: $(READY)
	$(BIN)/python -m pytest -m "slow and not docker and not alone" $(SLOW_ARGS) --timeout=3600
	$(BIN)/python -m pytest -m "alone" --timeout=3600

# Into an environment whose torch is built for CUDA: `make test-gpu VENV=...`; skipped, with the reason, where none is seen.
test-gpu: $(READY)
	$(BIN)/python -m pytest -m "gpu" --timeout=3600

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dist: $(READY)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

# What is installed where hashes are asked for, for every platform: pip install --require-hashes -r dist/requirements.txt
release: $(READY) dist
	$(BIN)/python -m pip install --quiet -c constraints.txt 'cyclonedx-bom>=7,<8'
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --constraints constraints.txt \
	  --no-header --output-file dist/requirements.txt pyproject.toml
	$(BIN)/cyclonedx-py requirements dist/requirements.txt --pyproject pyproject.toml --mc-type application \
	  --output-reproducible --of JSON -o dist/sbom.cdx.json
	cd dist && sha256sum *.whl requirements.txt sbom.cdx.json > SHA256SUMS

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage build dist *.egg-info
