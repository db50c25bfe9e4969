# One command per task; `make` alone lists them. Every target makes and fills its own .venv (see tools/setup).

.DEFAULT_GOAL := help
SHELL := /bin/sh
FLIGHTS ?= 20000
HOST ?= 127.0.0.1
PORT ?= 8085
DATA_DIR ?= heliograph-data
BENCH ?=
ROUNDS ?= 50
SEED ?= $(shell date +%s)
VENV := .venv
BIN := $(VENV)/bin
INPUTS := pyproject.toml constraints.txt tools/setup

.PHONY: help setup demo serve test lint format crash-test bench compatibility check constraints clean

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# One stamp per set of extras, written last; a failed set-up leaves none, so the next run goes on from there.
$(VENV)/.ready-all: $(INPUTS)
	@sh tools/setup all
$(VENV)/.ready-demo: $(INPUTS)
	@sh tools/setup demo
$(VENV)/.ready-server: $(INPUTS)
	@sh tools/setup server

setup: $(VENV)/.ready-all ## install everything into .venv
	@echo "Ready: $(BIN)/heliograph"

demo: $(VENV)/.ready-demo ## run the main job on the flights of 2013 (FLIGHTS=20000, or all)
	@$(BIN)/heliograph demo --flights $(FLIGHTS)

serve: $(VENV)/.ready-server ## start a broker (HOST, PORT, DATA_DIR)
	@exec $(BIN)/heliograph serve --host $(HOST) --port $(PORT) --data-dir $(DATA_DIR)

lint: $(VENV)/.ready-all ## style, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test: lint ## lint, then all tests: the quick ones, then the slow ones
	$(BIN)/pytest -m "not slow" -n 2
	$(BIN)/pytest -m slow -n 2 --dist loadfile --timeout 600

check: lint ## lint and the quick tests only
	$(BIN)/pytest -m "not slow" -n 2

format: $(VENV)/.ready-all ## put the code into the house's form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

crash-test: $(VENV)/.ready-all ## kill a broker at work, again and again (ROUNDS=50, SEED to repeat a run)
	ROUNDS=$(ROUNDS) SEED=$(SEED) $(BIN)/pytest tests/crash -m slow -s

bench: $(VENV)/.ready-server ## measure (BENCH="--quick --only publish")
	@$(BIN)/python -m benchmarks $(BENCH)

compatibility: $(VENV)/.ready-all ## run the official clients and write docs/compatibility.md
	-$(BIN)/pytest tests/official_clients -m slow --timeout 900
	$(BIN)/python -m tests.official_clients.page

constraints: ## choose and pin the newest versions that fit pyproject.toml
	@sh tools/constraints

clean: ## remove .venv and everything that tools left behind
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis benchmarks/results
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
