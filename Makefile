# Every target does its own set-up: Python 3.11 or newer, pip, git and make are enough. The tests also need curl and
# Node 18 or newer, which are installed if missing (as root on Debian).
# To use another interpreter: make test PYTHON=/path/to/python3.12

SHELL := /bin/sh
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# The first interpreter that is new enough; if none is, python3, for which set-up reports its version as too old.
PYTHON ?= $(shell for p in python3 python python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; exit; }; done; echo python3)
BIN := $(CURDIR)/.venv/bin
OWN_RAY_PYTHON := $(CURDIR)/.venv-ray/bin/python
RAY_PYTHON := $(or $(RMCS_RAY_PYTHON),$(OWN_RAY_PYTHON))
demo test test-full bench chaos-store links-under-fire: export RMCS_RAY_PYTHON = $(RAY_PYTHON)

.PHONY: help demo chaos-store links-under-fire quality test test-unit test-full coverage mutation sim-test lint audit fuzz docs docs-serve format wheel bench clean setup setup-ray setup-ray-old setup-node setup-promtool

help: ## List the targets (the default)
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup setup-ray ## Start two real Ray clusters, run tasks and a job, and explain each placement
	@exec "$(BIN)/rmcs" demo

test: setup setup-ray setup-ray-old setup-node setup-promtool ## Run all tests, unit and integration (real Ray), except the slow ones
	@exec "$(BIN)/python" scripts/run_tests.py $(ARGS)

test-unit: setup setup-node setup-promtool ## Run only the tests without Ray
	@exec "$(BIN)/python" -m pytest tests/unit $(ARGS)

test-full: setup setup-ray setup-ray-old setup-node setup-promtool ## Run all tests, including the slow ones
	@exec "$(BIN)/python" -m pytest -m "" $(ARGS)

# The pure core. Its two I/O drivers are left out; integration tests cover them.
CORE := queue policy cluster lifecycle pools

coverage: setup ## Measure branch coverage of the pure core by its unit tests; fails below 100 %
	@"$(BIN)/python" -m pytest $(foreach part,$(CORE),tests/unit/$(part)) tests/unit/scenarios -q -n 2 --hypothesis-seed=0 \
		--cov-branch --cov-report= $(foreach part,$(CORE),--cov=ray_multicluster_scheduler/scheduler/$(part))
	@"$(BIN)/coverage" report -m --skip-covered --fail-under=100 \
		--omit='*/task_lifecycle_manager.py,*/transition_log.py'

mutation: setup ## Mutation testing: 500 small changes to the pure core, which tests should detect; takes hours
	@exec "$(BIN)/python" scripts/mutation.py $(ARGS)

SEEDS ?= 1000
sim-test: setup ## Run SEEDS (1000) simulations of the scheduler with faults, and check the guarantees of docs/guarantees.md
	@exec "$(BIN)/python" scripts/sim_test.py --seeds $(SEEDS) $(ARGS)

N ?= 50
chaos-store: setup setup-ray ## Kill a service N times (50) under load on real clusters, then check that no guarantee was violated
	@exec "$(BIN)/python" scripts/chaos_store.py --rounds $(N) $(ARGS)

links-under-fire: setup setup-ray ## Inject network faults between a service and two clusters; ARGS=--write updates docs/links.md
	@exec "$(BIN)/python" scripts/links_under_fire.py $(ARGS)

quality: setup ## Measure placement by simulation; writes the table and plot of docs/policies.md
	@exec "$(BIN)/python" scripts/policy_quality.py $(ARGS)

lint: setup ## Run ruff, mypy --strict, import-linter and bandit
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/mypy"
	"$(BIN)/lint-imports"
	"$(BIN)/bandit" --quiet --configfile pyproject.toml --recursive ray_multicluster_scheduler

# Not in CI: it needs a vulnerability database on the internet. An unreachable database is a failure, never "none".
audit: setup ## Check our dependencies for known vulnerabilities (pip-audit --strict)
	@exec "$(BIN)/python" scripts/audit.py $(ARGS)

MINUTES ?= 10
fuzz: setup ## Fuzz a service with valid and invalid requests by its OpenAPI document, for MINUTES (10)
	@exec "$(BIN)/python" scripts/fuzz.py --minutes $(MINUTES) $(ARGS)

docs: setup ## Build the documentation into site/, offline; SITE=… for another folder
	@NO_MKDOCS_2_WARNING=1 "$(BIN)/python" -m mkdocs build --quiet --clean --site-dir "$(or $(SITE),site)"
	@echo "$(or $(SITE),site)/index.html"

docs-serve: setup ## Serve the documentation locally, with live reload
	@NO_MKDOCS_2_WARNING=1 exec "$(BIN)/python" -m mkdocs serve

format: setup ## Format the code, and apply the fixes of ruff
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .

wheel: setup ## Build dist/*.whl
	@"$(BIN)/python" -m build --wheel --no-isolation --outdir dist .

bench: setup setup-ray ## Run the benchmarks; each prints one line of JSON
	@for file in bench/[a-z]*.py; do \
		"$(BIN)/python" -m "bench.$$(basename "$$file" .py)" --json || exit 1; done

clean: ## Remove the environments and all build output
	rm -rf .venv .venv-ray .venv-ray-old .venv.lock .venv-ray.lock .venv-ray-old.lock \
		dist build site htmlcov sim-failures .coverage \
		tests/javascript/node_modules tests/javascript/.lock .promtool \
		.pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

setup: ## Create .venv, the development environment
	@"$(PYTHON)" scripts/setup_env.py dev

# With RMCS_RAY_PYTHON set to another interpreter, .venv-ray is not needed.
setup-ray: ## Create .venv-ray, the environment of the local clusters
	@if [ "$(RAY_PYTHON)" = "$(OWN_RAY_PYTHON)" ]; then "$(PYTHON)" scripts/setup_env.py ray; fi

setup-ray-old: ## Create .venv-ray-old with a one-year-old Ray, for the test with two versions
	@"$(PYTHON)" scripts/setup_env.py ray-old

setup-node: ## Install what runs the examples of docs/api.md: curl, Node, two npm packages
	@"$(PYTHON)" scripts/setup_node.py

setup-promtool: ## Install promtool, which checks the rules of examples/monitoring
	@"$(PYTHON)" scripts/setup_promtool.py
