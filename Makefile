# Two commands: `make test` and `make demo`. All set-up lands in .venv and .cache of this checkout, nothing is global.
# Needs from the system: Python 3.10 to 3.13 (PYTHON=/path/to/python chooses one) and a C++ compiler.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(CURDIR)/$(VENV)/bin/python
READY := $(VENV)/.ready
REQUIREMENTS := tests/requirements.txt
# The rooms whose tests show a fault of the catalogue.
FAULTS := tests/faults tests/live tests/offline/test_damage.py tests/offline/test_judge.py

# Ranks share the cores; more threads in each only slow the others down.
export OMP_NUM_THREADS := 1
# Makefile and tests choose what dspatch does; a variable of the shell must not.
unexport DSPATCH DSPATCH_MODE DSPATCH_DISABLE DSPATCH_TAGS DSPATCH_UNKNOWN DSPATCH_VERIFY DSPATCH_TRUST
unexport DSPATCH_TIMEOUT DSPATCH_THREADS DSPATCH_EXPECT DSPATCH_REPORT DSPATCH_LOG_LEVEL

.PHONY: help setup trees lint test demo bench faults peers fuzz ranges clean

help:
	@echo "make test    set up, lint, type check, and run all tests on real DeepSpeed ranks"
	@echo "make demo    set up, then show three lossy resumes without and with dspatch (writes demo-out/)"
	@echo "make lint    ruff and mypy --strict"
	@echo "make peers   DeepSpeed's own checkpoint tests under dspatch (SRC=/path/to/a/checkout/at/a/release)"
	@echo "make fuzz    20,000 mutated checkpoint files and as many hostile pickles (FUZZ_FILES=N; some 20 minutes)"
	@echo "make faults  all fault scenarios in all modes and their healthy twins; writes docs/faults.md (ARGS='-k name' chooses)"
	@echo "make ranges  the releases in which faults begin and end, built and run (takes long the first time)"
	@echo "make bench   the costs that the design promises, measured"
	@echo "make clean   remove .venv and .cache"

setup: $(READY) trees

$(READY): $(REQUIREMENTS) setup.cfg pyproject.toml
	@bash tests/support/setup.sh

trees: $(READY)
	@$(PY) -m tests.support.trees

lint: $(READY)
	@$(PY) -m ruff check --config tests/ruff.toml .
	@$(PY) -m mypy
	@$(PY) -m mypy --package patches

test: lint trees
	@$(PY) -m pytest $(ARGS)

faults: trees
	@$(PY) -m pytest $(FAULTS) --whole $(if $(ARGS),,--write-table) $(ARGS)

ranges: trees
	@$(PY) -m pytest tests/faults/test_ranges.py --ranges $(ARGS)

peers: $(READY)
	@$(PY) -m tests.support.peers $(SRC) $(ARGS)

fuzz: trees
	@FUZZ_FILES=$${FUZZ_FILES:-20000} $(PY) -m pytest tests/checkpoint/test_fuzz.py tests/offline/test_fuzz.py $(ARGS)

bench: trees
	@$(PY) -m pytest tests/benchmarks -s --benchmarks $(ARGS)

demo: trees
	@$(PY) -m tests.support.demo $(ARGS)

clean:
	rm -rf $(VENV) .cache
