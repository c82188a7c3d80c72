# Targets install their requirements into .venv, .venv-oldest or .venv-newest when they run for the first time.

PYTHON ?= python3
OLDEST_PYTHON ?= python3.10
BIN := .venv/bin
PYTEST := -m pytest -n 2 --dist worksteal
# A first answer within 30 seconds.
QUICK := tests/test_structure.py tests/test_style.py tests/test_cli.py tests/support tests/data tests/tasks
INSTALL := pip install --quiet --disable-pip-version-check --no-compile # Python compiles what it imports

# Container images set this. Without compiled files, each of the many processes compiles its imports again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-quick test-slow test-tools test-all test-oldest test-newest coverage browser dist docs benchmark soak lint clean

demo: .venv/installed
	$(BIN)/python run_demo.py

test: .venv/installed
	$(BIN)/python $(PYTEST) -m "not slow" --ignore=tests/tools

test-quick: .venv/installed
	$(BIN)/python $(PYTEST) -m "not slow" $(QUICK)

test-slow: .venv/installed
	$(BIN)/python $(PYTEST) -m slow --ignore=tests/tools

test-tools: .venv/installed
	$(BIN)/python $(PYTEST) tests/tools

test-all: .venv/installed
	$(BIN)/python $(PYTEST)

# Run all tests with the oldest versions that setup.cfg allows, and with the newest versions.
test-oldest: .venv-oldest/installed
	.venv-oldest/bin/python $(PYTEST)

test-newest: .venv-newest/installed
	.venv-newest/bin/python $(PYTEST)

coverage: .venv/installed
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run $(PYTEST)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report

# Installs Chromium and its driver on Debian, for tests of HTML pages.
browser:
	apt-get update
	apt-get install --yes --no-install-recommends chromium chromium-driver

# Builds the wheel and the sdist, and tests the wheel in a new virtual environment.
dist: .venv/installed
	rm -rf dist
	$(BIN)/python -m build
	set -e; empty=$$(mktemp -d); trap "rm -rf $$empty" EXIT; \
	$(PYTHON) -m venv $$empty/venv; \
	$$empty/venv/bin/$(INSTALL) --constraint constraints.txt dist/*.whl; \
	cd $$empty; \
	venv/bin/fixedbert --help; \
	venv/bin/python -c "import json, pydoc_data.topics as t; [print(json.dumps({'text': text})) for text in t.topics.values()]" > topics.jsonl; \
	venv/bin/fixedbert pretrain recipes/sample.yaml --max_steps 2 --max_eval_samples 13 --output_dir model

docs: .venv/installed
	$(BIN)/$(INSTALL) --constraint constraints.txt --editable ".[docs]"
	$(BIN)/python -m sphinx -W --keep-going -q -c docs . build/site
	@echo build/site/index.html

benchmark: .venv/installed
	$(BIN)/python -m benchmarks.model
	$(BIN)/python -m benchmarks.gpu
	$(BIN)/python -m benchmarks.pretraining_data
	$(BIN)/python -m benchmarks.finetuning

soak: .venv/installed
	rm -rf soak-output
	set -e; for generator in corpora options rows checkpoints faults; do $(BIN)/python -m soak $$generator; done

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/$(INSTALL) --constraint constraints.txt --editable ".[dev]"
	touch $@

.venv-oldest/installed: setup.cfg pyproject.toml
	$(OLDEST_PYTHON) -m venv .venv-oldest
	.venv-oldest/bin/$(INSTALL) torch==2.11.0 transformers==5.15.0 --editable ".[test]"
	touch $@

.venv-newest/installed: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv-newest
	.venv-newest/bin/$(INSTALL) --upgrade --upgrade-strategy eager --editable ".[test]"
	touch $@

clean:
	rm -rf .venv .venv-oldest .venv-newest build dist demo
