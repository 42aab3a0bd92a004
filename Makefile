# Two commands are all a newcomer needs: `make run` and `make test`. Both set everything up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run quick test test-all soak check bench clean

run: $(VENV)/.ready
	@$(BIN)/ringfence demo

# Pure tests, in seconds.
quick: $(VENV)/.ready
	@$(BIN)/python -m tests.run quick

# Everything that a change can break on this host, as root and as an ordinary user.
test: $(VENV)/.ready
	@$(BIN)/python -m tests.run test

# That, and guest kernels, other people's suites, benches once, coverage.
test-all: $(VENV)/.ready
	@$(BIN)/python -m tests.run all

# Long fuzzing, endurance, whole corpora.
soak: $(VENV)/.ready
	@$(BIN)/python -m tests.run soak

check: $(VENV)/.ready
	$(BIN)/ruff check src tests bench examples
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_layers.py

# All questions, or some: make bench BENCH="--effort short python_snippet bin_true"
bench: $(VENV)/.ready
	$(BIN)/python -m bench $(BENCH)

$(VENV)/.ready: pyproject.toml
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ringfence needs Python 3.11 or later")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip 2>&1 | grep -v '^WARNING' || true
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' 2>&1 | grep -v '^WARNING' || true
	@$(BIN)/python -c 'import ringfence, pytest, yaml'
	@touch $@

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .coverage* htmlcov bench/results
