# `make demo` and `make test` do all their own set-up: a virtual environment, the pinned install, then the work.
PYTHON ?= python3
VENV ?= .venv
LOWEST ?= .venv-lowest
DIST ?= dist
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PYTEST_ARGS ?= -n auto --dist loadfile
SLOW_ARGS ?= -n 2 --dist loadfile
QUICK := -m "not slow and not thorough and not docker"
LOWEST_EXTRAS := images data boosting sql vertical dicom nifti excel export tensorboard mlflow notebook
LOWEST_TOOLS := pytest pytest-timeout pytest-xdist hypothesis pyyaml packaging nbclient nbformat hatchling
LOWEST_TESTS ?= tests/fedsmall tests/strategies tests/clients
TORCH_FROM := $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS),--torch-backend auto)

# One thread a process: small models lose by more, and so do tests that run side by side.
export OMP_NUM_THREADS ?= 1
export FLWR_TELEMETRY_ENABLED ?= 0
export FLWR_DISABLE_UPDATE_CHECK ?= 1
export RAY_USAGE_STATS_ENABLED ?= 0
export MPLBACKEND ?= Agg
# uv trusts whom the machine trusts, as pip does: a hospital's proxy, too.
export UV_NATIVE_TLS ?= 1
export UV_SYSTEM_CERTS ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test coverage test-slow test-gpu test-lowest lint format docs install licences dist sbom release clean

help:
	@echo "make demo       install what is needed, then compare seven methods on two data sets (about 90 s)"
	@echo "make test       install what is needed, then the quick tests"
	@echo "make coverage   the quick tests, and how much of the code they run; fails below the floor of pyproject.toml"
	@echo "make test-slow  the tests that reproduce papers, start Ray, or run a consortium (about ten minutes)"
	@echo "make test-gpu   the tests that compare a GPU with the CPU; skipped where torch sees none"
	@echo "make test-lowest  quick tests with the oldest versions that pyproject.toml allows, in an environment of their own"
	@echo "make lint       ruff and mypy"
	@echo "make format     let ruff mend what it can"
	@echo "make docs       the documentation site, in build/site: open index.html, no network needed"
	@echo "make install    only the virtual environment, with all that development needs"
	@echo "make licences   docs/licences.md anew, from what is pinned in constraints.txt"
	@echo "make dist       the wheel and the sdist, in dist/"
	@echo "make sbom       all that the wheel needs with digests, and its bill of materials (SBOM), in dist/"
	@echo "make release    wheel and sdist, tried in empty environments, and the bill of materials"
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
	$(BIN)/python -m pytest -m "(slow or thorough) and not docker and not alone" $(SLOW_ARGS) --timeout=3600
	$(BIN)/python -m pytest -m "alone" --timeout=3600

# Into an environment whose torch is built for CUDA: `make test-gpu VENV=...`; skipped, with the reason, where none is seen.
test-gpu: $(READY)
	$(BIN)/python -m pytest -m "gpu" --timeout=3600

# Without the stub of fedsmall's names: it would put every module into one circle.
lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	rm -rf build/types && mkdir -p build/types/fedsmall
	ln -sfn $(filter-out %.pyi,$(wildcard $(CURDIR)/fedsmall/*)) $(CURDIR)/strategies $(CURDIR)/clients $(CURDIR)/sim $(CURDIR)/extensions $(CURDIR)/research build/types/fedsmall
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Warnings end it; --quiet would keep them from being counted. The variable silences a notice of the theme, which is not
# about this site: it is looked after until May 2027.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The extra survival wants a later scikit-learn than fedsmall does, so its tests are skipped here.
# Where the oldest torch is built for CUDA alone, gigabytes of it, the one that is here stays (CONTRIBUTING.md).
test-lowest: $(READY)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(LOWEST)
	$(BIN)/python -m pip list --format freeze | grep -E "^(torch|torchvision)==" > $(LOWEST)/torch.txt
	$(BIN)/uv pip compile --quiet --no-annotate --resolution lowest-direct $(TORCH_FROM) --constraints $(LOWEST)/torch.txt \
	  $(foreach extra,$(LOWEST_EXTRAS),--extra $(extra)) --output-file $(LOWEST)/lowest.txt pyproject.toml
	$(BIN)/uv pip install --quiet --python $(LOWEST) $(TORCH_FROM) -r $(LOWEST)/lowest.txt
	$(BIN)/uv pip install --quiet --python $(LOWEST) --no-deps -e .
	$(BIN)/uv pip install --quiet --python $(LOWEST) -c $(LOWEST)/lowest.txt $(LOWEST_TOOLS)
	$(LOWEST)/bin/python -m pytest $(QUICK) $(PYTEST_ARGS) $(LOWEST_TESTS)

licences: $(READY)
	$(BIN)/python -m tests.release.licences

# The date in the files is that of the commit, so that who builds the same commit has the same bytes.
dist: $(READY)
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(BIN)/python -m hatchling build -d dist -t sdist -t wheel

# What is installed where hashes are asked for, for every platform: pip install --require-hashes -r dist/requirements.txt
sbom: $(READY)
	mkdir -p $(DIST)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --constraints constraints.txt \
	  --no-header --output-file $(DIST)/requirements.txt pyproject.toml
	$(BIN)/uv tool run --quiet --constraints constraints.txt --from 'cyclonedx-bom>=7,<8' cyclonedx-py requirements \
	  $(DIST)/requirements.txt --pyproject pyproject.toml --mc-type application --output-reproducible --of JSON -o $(DIST)/sbom.cdx.json

release: $(READY) dist sbom
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)} $(BIN)/python -m tests.release.check dist
	cd dist && sha256sum *.whl *.tar.gz requirements.txt sbom.cdx.json > SHA256SUMS

clean:
	rm -rf $(VENV) $(LOWEST) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage build dist *.egg-info
