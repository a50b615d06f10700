# `make demo` and `make test` need Python 3.11 and make; everything else they install themselves into .venv.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python3.10; do \
	$$p -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
PIP = $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
# A change of what is installed changes the name of its stamp, so that a set-up is repeated only when it must be.
SUM := $(shell cat pyproject.toml constraints.txt | cksum | cut -d' ' -f1)
RUN := $(VENV)/.installed-run-$(SUM)
DEV := $(VENV)/.installed-dev-$(SUM)
SUITES ?=
STRICT ?=
TORTURE_ROUNDS ?= 50
CRASH_ROUNDS ?= 200
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test lint format proto proto-check bench torture wheel-test test-pythons clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo 'kvstore needs Python 3.10 to 3.13 with its venv module (3.11 is the tested one for the demo).' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(RUN): | $(VENV)/bin/python
	@echo 'installing kvstore with what the demo needs into $(VENV) (once)'
	$(PIP) -e '.[cli,node,decoder]'
	@rm -f $(VENV)/.installed-run-*; touch $@

$(DEV): | $(VENV)/bin/python
	@echo 'installing kvstore with what its tests need into $(VENV) (once)'
	$(PIP) -e '.[dev]'
	@rm -f $(VENV)/.installed-*; touch $@ $(RUN)

demo: $(RUN)  ## a language model skips its prefill because another process had computed the prefix
	$(BIN)/kvstore demo $(ARGS)

test: $(DEV)  ## every suite (SUITES="unit contract" for some of them)
	$(BIN)/python -m tests.suites $(STRICT) $(SUITES)

lint: $(DEV)  ## format, lint, types, import arrows
	$(BIN)/python -m tests.suites lint

format: $(DEV)  ## rewrite the sources in the one format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto:  ## generate the code of proto/ (own environment, pinned generator)
	sh proto/generate.sh '$(PYTHON)'

proto-check:  ## fail when the generated code is not what proto/ generates
	sh proto/generate.sh --check '$(PYTHON)'

bench: $(RUN)  ## the data path against what this machine can do (ARGS=--json for one JSON object)
	$(BIN)/kvstore bench local $(ARGS)

torture: $(DEV)  ## hours: kill and stop processes and break disks TORTURE_ROUNDS times, crash nodes CRASH_ROUNDS times a way, check every byte
	$(BIN)/python -m tests.torture --rounds $(TORTURE_ROUNDS) $(ARGS)
	$(BIN)/python -m tests.torture.crashes --rounds $(CRASH_ROUNDS)
	$(BIN)/python -m tests.faults --rounds $(CRASH_ROUNDS)

wheel-test: $(DEV)  ## build sdist and wheel, try the wheel in clean environments
	$(BIN)/python -m tests.suites packaging

test-pythons: $(DEV)  ## the suites that need no torch, with each other Python that is installed
	$(BIN)/python -m tests.pythons $(ARGS)

clean:  ## remove what the targets above made, but for .venv
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.venv*' -prune -exec rm -rf {} +

include mk/vllm.mk
include mk/deploy.mk
include mk/image.mk
include mk/soak.mk
include mk/rdma.mk
