# Two commands are enough on a fresh machine: `make demo` and `make test`.
# Each builds what it needs; nothing is installed outside this folder.

# the first that is new enough and can make a virtual environment
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
ENGINE ?= sim
BIN := .venv/bin

# Rewriting 160 test files anew in each process is half of what collecting them takes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-fast coverage lint format schema vllm bench clean
.DELETE_ON_ERROR:

help: ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 12

demo: .venv/ready $(if $(filter vllm,$(ENGINE)),vllm) ## warm an engine and open the gate; ENGINE=vllm: a real one
	@$(BIN)/python -m benchmarks.demo --engine $(ENGINE)

test: .venv/ready ## every tier: fast, programs, proxies, real vLLM, containers (those that can't run say why)
	$(BIN)/pytest

# Three processes even on two cores: half of its time is waiting.
test-fast: .venv/ready ## the tests without programs, proxies, vLLM and containers, under a minute
	$(BIN)/pytest -m "not programs and not proxies and not live and not containers" -n 3 --dist loadfile

# The tests of what `core` decides: half a minute, and no process is started.
DECIDING = tests/core tests/adapters/test_engine.py tests/adapters/test_replay.py \
	tests/adapters/test_state.py tests/service/test_conductor.py tests/service/test_web.py \
	tests/simulator/test_engine.py tests/test_settings.py tests/test_shapes_files.py

coverage: .venv/ready ## how much of core, lines and branches, its tests run; fails below the floor
	$(BIN)/pytest -q $(DECIDING) --cov=sidecar/core --cov-branch --cov-report=term-missing:skip-covered --cov-fail-under=98

lint: .venv/ready ## formatting, ruff, mypy
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

format: .venv/ready ## let ruff format and mend what it can
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

schema: .venv/ready ## write shapes/schema.json anew
	$(BIN)/vllm-warmup shapes schema > shapes/schema.json.new && mv shapes/schema.json.new shapes/schema.json

vllm: ## a real vLLM (two versions, 2.5 GB) and tiny models, for the demo and the live tests
	@$(PYTHON) tests/live/install.py

bench: .venv/ready ## the figures of benchmarks/README.md
	$(BIN)/python -m benchmarks.truth
	$(BIN)/python -m benchmarks.axes
	$(BIN)/python -m benchmarks.wave
	$(BIN)/python -m benchmarks.service

clean: ## what this file built, the real vLLM excepted
	rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache .coverage

.venv/ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer with venv was found" \
		"(Debian: apt-get install python3-venv), or say which: make PYTHON=…" >&2; exit 1; }
	@$(BIN)/python -c '' 2>/dev/null || { rm -rf .venv; $(PYTHON) -m venv .venv; }
	@echo "make: installing into .venv"
	@$(BIN)/python -m pip install -qq --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install -qq --editable . --group dev
	@touch $@
