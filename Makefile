# make demo    the twin's comparison, in a fresh clone too
# make test    every test
# make check   style, types, architecture, generated (each is a target too)
# make gen     write the generated files again
# make paper   the paper's evaluation in the twin, again: docs/paper.md, its data and pictures
# make kernels the GPU's code, for sm_90; runs nothing
# make tsan    the C++ core on threads under ThreadSanitizer; make asan: under AddressSanitizer
# make clean   remove what tools left behind (`rm -rf .venv` for the environment)
#
# Only Python 3.11 or newer is needed: `make demo PYTHON=/usr/bin/python3.12` picks one.
# ARGS reaches the tool: `make test ARGS="-k ring -x"`, `make demo ARGS="--seed 7"`.

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && break; done)
CXX_FILES = $(filter-out %/protocol.h,$(shell find blink/hw -name "*.h" -o -name "*.cpp"))
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check

.DELETE_ON_ERROR:
.PHONY: help demo test check style types architecture generated gen paper kernels tsan asan clean

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

demo: $(VENV)/.installed
	$(BIN)/blink run specs/demo.toml $(ARGS)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(ARGS)

check: style types architecture generated

style: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CXX_FILES)

types: $(VENV)/.installed-dev
	$(BIN)/mypy

architecture: $(VENV)/.installed-dev
	$(BIN)/lint-imports --no-logo

generated: $(VENV)/.installed
	$(BIN)/python tools/generate.py --check

gen: $(VENV)/.installed
	$(BIN)/python tools/generate.py

paper: $(VENV)/.installed
	$(BIN)/blink reproduce --out docs $(ARGS)

kernels: $(VENV)/.installed
	$(BIN)/python -m blink.hw.cuda.compile $(ARGS)

tsan asan: $(VENV)/.installed
	$(BIN)/python benchmarks/stress.py --sanitizer $@ --lifecycles 50000 $(ARGS)

clean:
	rm -rf .benchmarks .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache dist
	find blink tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment. pip is the last thing that venv puts in place, so a venv that failed half way is made again. An
# environment that exists already is kept and completed. The stamps make the second call instant; a changed
# pyproject.toml installs again.

$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "blink needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3" >&2; exit 2; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "blink needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=/path/to/python3" >&2; exit 2; }
	@echo "creating $(VENV) with $(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV) || \
		{ echo "could not create $(VENV); on Debian and Ubuntu: apt install python3-venv" >&2; exit 2; }

$(VENV)/.installed: pyproject.toml | $(BIN)/pip
	@echo "installing blink into $(VENV)"
	@$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/pip
	@echo "installing blink and its development tools into $(VENV)"
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $(VENV)/.installed $@
