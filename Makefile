# One entry for everything. Each target does its own set-up; nothing but Python 3.11 or later and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

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
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: models
	$(BIN)/python -m benchmarks.followup --json results/followup.json

eval: models
	$(BIN)/python -m evals.needle --kinds digits names --lengths 600 --depths 2 --budgets 128 --json results/needle.json --plot results/needle.png
	$(BIN)/python -m evals.ruler --tasks single multi_key --lengths 600 --draws 1 --policies snapkv --fractions 1/4 --json results/ruler.json --plot results/ruler.png
ifdef DATA
	$(BIN)/python -m evals.multiturn --data $(DATA) --documents 1 --questions 3 --tokens 1000 4000 --budgets 512 --storage int4 --json results/multiturn.json --plot results/multiturn.png
endif

clean:
	rm -rf $(VENV) results .mypy_cache .ruff_cache .pytest_cache
