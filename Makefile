# One entry for everything. Each target does its own set-up; nothing but Python 3.11 or later and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DATA ?= snaprag-data

.PHONY: all install models demo serve test lint bench eval clean
all: lint test

install: $(STAMP)

$(STAMP): pyproject.toml requirements.lock
	$(PYTHON) -c 'import sys; sys.exit("snaprag needs Python 3.11 or later" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet $$(grep '^torch==' requirements.lock)
	$(BIN)/python -m pip install --quiet --constraint requirements.lock --editable . --group dev
	touch $(STAMP)

models: install
	$(BIN)/snaprag models pull

demo: models
	$(BIN)/python -m samples.demo

serve: install
	$(BIN)/snaprag serve

test: models
	$(BIN)/python -m pytest

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: models
	$(BIN)/python -m benchmarks.followup --json results/followup.json

eval: models
	$(BIN)/python -m evals.needle --json results/needle.json

clean:
	rm -rf $(VENV) results .mypy_cache .ruff_cache .pytest_cache
