# Every target does its own set-up: Python 3.11 or newer, pip, git and make are enough. The tests also want curl and
# Node 18 or newer; as root on Debian they are installed.
# Another interpreter: make test PYTHON=/path/to/python3.12

SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The first one that is new enough; without any, python3 is left to say how old it is.
PYTHON ?= $(shell for p in python3 python python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; exit; }; done; echo python3)
BIN := $(CURDIR)/.venv/bin
OWN_RAY_PYTHON := $(CURDIR)/.venv-ray/bin/python
RAY_PYTHON := $(or $(RMCS_RAY_PYTHON),$(OWN_RAY_PYTHON))
demo test test-full bench chaos-store links-under-fire: export RMCS_RAY_PYTHON = $(RAY_PYTHON)

.PHONY: help demo chaos-store links-under-fire quality test test-unit test-full coverage mutation sim-test lint audit fuzz docs docs-serve format wheel bench clean setup setup-ray setup-ray-old setup-node setup-promtool

help: ## List what one can do (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup setup-ray ## Two real Ray clusters, tasks and a job on them, and why each ran where it did
	@exec "$(BIN)/rmcs" demo

test: setup setup-ray setup-ray-old setup-node setup-promtool ## All tests, unit and integration (real Ray), but for the slow ones
	@exec "$(BIN)/python" scripts/run_tests.py $(ARGS)

test-unit: setup setup-node setup-promtool ## Only the tests without Ray: seconds
	@exec "$(BIN)/python" -m pytest tests/unit $(ARGS)

test-full: setup setup-ray setup-ray-old setup-node setup-promtool ## All tests, the slow ones too
	@exec "$(BIN)/python" -m pytest -m "" $(ARGS)

# The pure core; what its two drivers of I/O do is shown elsewhere.
CORE := queue policy cluster lifecycle

coverage: setup ## Branch coverage of the pure core by its unit tests: 100 %, or it fails
	@"$(BIN)/python" -m pytest $(foreach part,$(CORE),tests/unit/$(part)) tests/unit/stories -q -n 2 --hypothesis-seed=0 \
		--cov-branch --cov-report= $(foreach part,$(CORE),--cov=ray_multicluster_scheduler/scheduler/$(part))
	@"$(BIN)/coverage" report -m --skip-covered --fail-under=100 \
		--omit='*/task_lifecycle_manager.py,*/transition_log.py'

mutation: setup ## Would the tests notice? 500 small changes to the pure core; takes long
	@exec "$(BIN)/python" scripts/mutation.py $(ARGS)

SEEDS ?= 1000
sim-test: setup ## SEEDS faulty runs of the brain (1000), judged by docs/guarantees.md; both cores
	@exec "$(BIN)/python" scripts/sim_test.py --seeds $(SEEDS) $(ARGS)

N ?= 50
chaos-store: setup setup-ray ## Kill a service N times (50) under load on real clusters; then look whether it kept its word
	@exec "$(BIN)/python" scripts/chaos_store.py --rounds $(N) $(ARGS)

links-under-fire: setup setup-ray ## Slow, cut, narrow, stop and kill what is between a service and a cluster; ARGS=--write for docs/links.md
	@exec "$(BIN)/python" scripts/links_under_fire.py $(ARGS)

quality: setup ## Measure placement by simulation; writes the table and plot of docs/policies.md
	@exec "$(BIN)/python" scripts/policy_quality.py $(ARGS)

lint: setup ## ruff, mypy --strict, import-linter, bandit
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/mypy"
	"$(BIN)/lint-imports"
	"$(BIN)/bandit" --quiet --configfile pyproject.toml --recursive ray_multicluster_scheduler

# Not in CI: it asks a database on the net. "Could not ask" is a failure, never "none".
audit: setup ## Known vulnerabilities of what we depend on (pip-audit --strict)
	@exec "$(BIN)/python" scripts/audit.py $(ARGS)

MINUTES ?= 10
fuzz: setup ## Ask a service what its OpenAPI allows, and what not, for MINUTES (10)
	@exec "$(BIN)/python" scripts/fuzz.py --minutes $(MINUTES) $(ARGS)

docs: setup ## Build the documentation into site/, without the net; SITE=… for another folder
	@NO_MKDOCS_2_WARNING=1 "$(BIN)/python" -m mkdocs build --quiet --clean --site-dir "$(or $(SITE),site)"
	@echo "$(or $(SITE),site)/index.html"

docs-serve: setup ## Show the documentation while you write it
	@NO_MKDOCS_2_WARNING=1 exec "$(BIN)/python" -m mkdocs serve

format: setup ## Let ruff mend what it can
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .

wheel: setup ## Build dist/*.whl
	@"$(BIN)/python" -m build --wheel --no-isolation --outdir dist .

bench: setup setup-ray ## Run the benchmarks, one line of JSON each
	@for file in bench/[a-z]*.py; do \
		"$(BIN)/python" -m "bench.$$(basename "$$file" .py)" --json || exit 1; done

clean: ## Remove the environments and everything that was built
	rm -rf .venv .venv-ray .venv-ray-old .venv.lock .venv-ray.lock .venv-ray-old.lock \
		dist build site htmlcov sim-failures .coverage \
		tests/javascript/node_modules tests/javascript/.lock .promtool \
		.pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: ## Only make .venv, the environment to develop in
	@"$(PYTHON)" scripts/setup_env.py dev

# A person who names another interpreter with ray needs no .venv-ray.
setup-ray: ## Only make .venv-ray, the environment of the local clusters
	@if [ "$(RAY_PYTHON)" = "$(OWN_RAY_PYTHON)" ]; then "$(PYTHON)" scripts/setup_env.py ray; fi

setup-ray-old: ## Only make .venv-ray-old, a Ray of about a year ago, for the test with two versions
	@"$(PYTHON)" scripts/setup_env.py ray-old

setup-node: ## Only have what runs the examples of docs/api.md: curl, Node, two packages of npm's
	@"$(PYTHON)" scripts/setup_node.py

setup-promtool: ## Only have what checks the rules of examples/monitoring
	@"$(PYTHON)" scripts/setup_promtool.py
