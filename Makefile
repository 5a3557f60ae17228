# make demo: from a clone to results/report/index.html. make test: tests. make test-slurm: on a SLURM. make lint: style.
# make bench: ratios of speed. make bench-growth: how time and memory grow. make bench-paper: what the paper's grid costs.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

BIN := .venv/bin
REPORT := results/report/index.html

define install
if [ "$$(id -u)" = 0 ]; then sudo=""; else sudo="sudo -n"; fi; \
if ! { $$sudo apt-get update -q && $$sudo apt-get install -q -y $(1); }; then \
    echo "Missing: $(1). Install it with your system's packages, then run make again." >&2; exit 1; \
fi
endef

.PHONY: help demo test test-slurm chromium slurm bench bench-growth bench-paper lint format

help:
	@sed -n '1,2s/^# //p' Makefile

demo: .venv/installed
	$(BIN)/snakemake --cores all
	@echo "The report is at $(CURDIR)/$(REPORT)"

test: .venv/installed chromium
	$(BIN)/python -m pytest

# The daemons are the tests' own; the packages are all that they need of the machine.
test-slurm: .venv/installed slurm
	@export PATH="$$PATH:/usr/sbin"; $(BIN)/python -m pytest -n 0 tests/slurm

# What tests need of the machine, installed where that is possible without asking.
chromium:
	@if ! command -v chromium > /dev/null && ! command -v chromium-browser > /dev/null && ! command -v google-chrome > /dev/null; then \
	    $(call install,chromium); \
	fi

slurm:
	@export PATH="$$PATH:/usr/sbin"; \
	for program in munged slurmctld slurmd sbatch; do \
	    if ! command -v "$$program" > /dev/null; then $(call install,slurm-wlm munge); break; fi; \
	done

# One thread: two on a machine that does something else measure that.
BENCH := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 PYTHONPATH=workflow/scripts $(BIN)/python

bench: .venv/installed
	$(BENCH) benchmarks/bench.py

bench-growth: .venv/installed
	$(BENCH) benchmarks/growth.py

# Hours and 40 GB for the whole grid, taken up where it was left. PAPER=FOLDER puts them elsewhere, and
# ARGUMENTS="--prompts short_heterogeneous --models gpt2" is a part of it.
PAPER := .bench-paper
bench-paper: .venv/installed
	$(BENCH) benchmarks/paper.py $(PAPER) $(ARGUMENTS)

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check Snakefile workflow/rules
	$(BIN)/snakemake --lint

format: .venv/installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow/rules

# Debian and Ubuntu ship Python without the module that makes environments complete: it is installed where that is
# possible without asking. The stamp comes last, so an interrupted installation is taken up again.
.venv/installed: requirements.txt constraints.txt
	@python=""; \
	for candidate in $${PYTHON:-} python3.11 python3.12 python3.13 python3; do \
	    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "No Python 3.11 or later was found. Install one, or name it: make demo PYTHON=/path/to/python" >&2; exit 1; fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    package=$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	    if [ "$$(id -u)" = 0 ]; then sudo=""; else sudo="sudo -n"; fi; \
	    if ! { $$sudo apt-get update -q && $$sudo apt-get install -q -y "$$package"; }; then \
	        echo "$$python cannot make environments. Install the package $$package, then run make again." >&2; exit 1; \
	    fi; \
	fi; \
	echo "Installing into .venv with $$python: a few minutes, once"; \
	"$$python" -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt -c constraints.txt
	@touch $@
