# Every target sets itself up in .venv; a second time nothing is installed again.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

demo: .venv/installed
	$(BIN)/python run_demo.py

test: .venv/installed
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

.venv/installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv demo
