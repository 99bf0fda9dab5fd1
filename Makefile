# `make demo` and `make test` are all one needs; both install into .venv first.
PYTHON ?= python3.11
BIN := .venv/bin
# Spinning threads cost up to ten times when anything else runs.
export OMP_WAIT_POLICY := PASSIVE

.PHONY: demo test slow lint clean

demo: .venv/installed
	$(BIN)/zoo fit --config configs/actguide/clue_lock.yaml
	$(BIN)/zoo test --config configs/actguide/clue_lock.yaml --model.weights runs/actguide/clue_lock/weights

test: .venv/installed
	$(BIN)/python -m pytest

slow: .venv/installed
	$(BIN)/python -m pytest -m slow --timeout 1800

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy zoo datamodules callbacks

.venv/installed: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[test,worlds,bench]'
	touch $@

clean:
	rm -rf .venv runs
