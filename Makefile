# Two commands matter: `make demo` runs the main job, `make test` passes the tests. Both make .venv when it is missing.

PYTHON ?= python3
VENV   := .venv
READY  := $(VENV)/.ready
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test long bench bench-checker clean

help:
	@echo "make demo           restore prefixes through all five objects on four tiny models and compare with cold runs"
	@echo "make test           run the tests (make long: the slow ones too)"
	@echo "make bench          measure keys, look-up, allocate, decode and free from 1k to 1M tokens"
	@echo "make bench-checker  measure the checker beside SPIN, Rumur and TLC, where they are installed (minutes)"
	@echo "make clean          remove .venv and build folders"

demo: $(READY)
	@$(BIN)/kvfsm demo

test: $(READY)
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not long" tests

long: $(READY)
	@$(BIN)/python -m pytest -q tests

bench: $(READY)
	@$(BIN)/python tests/benchmarks --only manager

bench-checker: $(READY)
	@$(BIN)/python tests/benchmarks --only checker

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("kvfsm needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; try: make PYTHON=python3.12 ...") if sys.version_info < (3, 11) else None'
	@echo "Making $(VENV) and installing what kvfsm and its tests need (a few minutes, once) ..."
	@$(PYTHON) -m venv $(VENV) || { echo "The venv module is missing: install python3-venv, or use a Python that has it."; exit 1; }
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
	@echo "Ready. For the kvfsm command itself: source $(BIN)/activate"

clean:
	rm -rf $(VENV) build *.egg-info
