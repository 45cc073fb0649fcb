# `make demo` and `make test` do everything from a fresh clone: they need python3 (3.10 or newer) and a package index.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := fixtures/scripts/seq2seq.py
READY := $(VENV)/.ready

.PHONY: demo test lint docs clean

# Exit status 1 of analyze and apply means "found something", which is what a demonstration is for.
demo: $(READY)
	$(BIN)/turbofix analyze $(DEMO) || test $$? -eq 1
	@echo
	$(BIN)/turbofix apply $(DEMO) || test $$? -eq 1
	@echo
	$(BIN)/turbofix verify $(DEMO) -- --epochs 2

# Where no bytecode is written, each of the many processes that the tests start compiles the whole package anew.
demo test lint docs: export PYTHONDONTWRITEBYTECODE =

# Neighbours share what they set up, so that a process takes tests in a row.
test: $(READY)
	$(BIN)/python -m pytest -n auto --dist worksteal

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m turbofix.docs --check

docs: $(READY)
	$(BIN)/python -m turbofix.docs

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "turbofix needs Python 3.10 or newer; make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[verify,report]' --group dev
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
