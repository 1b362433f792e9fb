# Python 3.10 to 3.13 and make are all that is needed. `make lab` first, `make dev` for the UI.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 3000

.PHONY: help lab dev test lint bench clean nightly conformance soak

help:  ## what the targets do
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

lab: $(VENV)/.run  ## set up, materialise everything on the rehearsal, print the claims, write the report
	@$(BIN)/kai-lab run

dev: $(VENV)/.run  ## the Dagster UI on 127.0.0.1:$(PORT)
	@$(BIN)/kai-lab dev --port $(PORT)

test: $(VENV)/.dev  ## all tests
	@$(BIN)/pytest

lint: $(VENV)/.dev  ## ruff, mypy and the import layers
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

nightly: $(VENV)/.run  ## look for new chart versions, judge a lab for each, and write the matrix
	@$(BIN)/kai-lab nightly

bench: $(VENV)/.dev  ## the numbers of docs/architecture.md, measured on this machine
	@$(BIN)/python -m kai_lab_pipeline_tests.bench

KILLS ?= 25
soak: $(VENV)/.dev  ## kill runs at random points (KILLS=25 of them): the next run must make up for each
	@$(BIN)/python -m kai_lab_pipeline_tests.soak $(KILLS)

conformance: $(VENV)/.dev  ## the API suite and the graph on a real API server as well (needs Go, see conformance/)
	@$(BIN)/python -m kai_lab_pipeline_tests.conformance

clean:  ## end the lab and remove everything that was made here
	@if [ -x $(BIN)/kai-lab ]; then $(BIN)/kai-lab down --all; fi
	@rm -rf $(VENV) .dagster_home .lab build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache

# Installed again whenever the locked versions or the project's own metadata change.
$(VENV)/.run: requirements.lock pyproject.toml | $(VENV)/bin/python
	@echo "installing the locked dependencies (once; a minute or so)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(VENV)/.dev: requirements-dev.lock $(VENV)/.run
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	@touch $@

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "$(PYTHON) was not found. Install Python 3.10 to 3.13, or say which one: make PYTHON=/path/to/python3 lab" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' || { echo "$$($(PYTHON) --version 2>&1) is not supported: Python 3.10 to 3.13 is needed. Say which one: make PYTHON=/path/to/python3 lab" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "This Python has no venv module. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
