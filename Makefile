# People and CI run the same commands: `make` lists them.

PORT ?= 3000
LOCK_ARGS ?=
BIN := .venv/bin

export DAGSTER_HOME := $(CURDIR)/.dagster
export DAGSTER_DISABLE_TELEMETRY := 1

# Read when a recipe runs, not when this file is: the first set-up writes the file in between.
WITH_JAVA = if [ -s .venv/.java-home ]; then export JAVA_HOME="$$(cat .venv/.java-home)"; fi;

CACHES := .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build iceberg_assets.egg-info
SOURCES := iceberg_assets iceberg_ingest iceberg_manager resources sensors tests benchmarks examples

.DEFAULT_GOAL := help
.PHONY: help run test test-faults test-services dev check fmt bench bench-ingest spark-status spark-stop lock clean setup

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: .venv/.ready ## build the demo lake, end to end
	@$(WITH_JAVA) exec $(BIN)/python -m iceberg_assets.demo

test: .venv/.ready ## run the tests (ARGS="-k name" passes options to pytest)
	@$(WITH_JAVA) exec $(BIN)/python -m pytest $(ARGS)

test-faults: .venv/.ready ## run the tests that kill processes (minutes)
	@$(WITH_JAVA) exec $(BIN)/python -m pytest -m faults $(ARGS)

test-services: .venv/.ready ## run the tests on PostgreSQL, S3, a REST catalog and a Spark cluster, started here (minutes)
	@$(WITH_JAVA) exec $(BIN)/python -m pytest -m services -n 0 -rs tests/services $(ARGS)

dev: export ICEBERG_ASSETS_AUTOSTART := 1
dev: .venv/.ready ## the Dagster UI with schedules and sensors on, at 127.0.0.1:3000 (PORT=…)
	@$(WITH_JAVA) exec $(BIN)/dagster dev -h 127.0.0.1 -p $(PORT)

check: .venv/.ready ## lint, formatting, types and the import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: .venv/.ready ## format the code and apply the safe lint fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/.ready ## run the benchmarks
	@$(WITH_JAVA) exec $(BIN)/python -m benchmarks $(ARGS)

bench-ingest: .venv/.ready ## how fast the ingest service answers, against a floor and two brokers
	@exec $(BIN)/python -m benchmarks.ingest_acks $(ARGS)

spark-status: .venv/.ready ## is the shared Spark server running?
	@$(WITH_JAVA) exec $(BIN)/iceberg-manager spark status

spark-stop: .venv/.ready ## stop the shared Spark server
	@$(WITH_JAVA) exec $(BIN)/iceberg-manager spark stop

lock: .venv/.ready ## pin requirements.txt anew from pyproject.toml and requirements.in (LOCK_ARGS=--upgrade)
	UV_CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/uv pip compile --quiet --generate-hashes --universal \
	  --python-version 3.11 --extra dev --extra team --extra services $(LOCK_ARGS) pyproject.toml requirements.in -o requirements.txt

setup: .venv/.ready ## make .venv, or bring it up to date (every target does so when it has to)
	@:

clean: ## stop Spark, remove .venv and the caches; tables and Dagster's history stay
	@if [ -x $(BIN)/iceberg-manager ]; then $(WITH_JAVA) $(BIN)/iceberg-manager spark stop \
	  || echo "clean: the Spark server could not be stopped; it may still be running"; fi
	@for path in .venv $(CACHES); do [ ! -e $$path ] || { echo "clean: removing $$path"; rm -rf $$path; }; done
	@echo "clean: removing compiled Python files"
	@find $(wildcard $(SOURCES)) -type d -name __pycache__ -prune -exec rm -rf {} +

.venv/.ready: requirements.txt pyproject.toml scripts/setup.sh
	@bash scripts/setup.sh
