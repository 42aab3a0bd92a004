# Two commands are all a newcomer needs: `make run` and `make test`. Both set everything up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed $(VENV)/.native
READY := $(INSTALLED) $(VENV)/.ready

.PHONY: run quick test unsteady test-windows test-all soak check bench corpus dist docs clean

run: $(INSTALLED)
	@$(BIN)/ringfence demo

# Pure tests, in seconds.
quick: $(READY)
	@$(BIN)/python -m tests.run quick

# The gate: what a change can break on this host, as root and as an ordinary user, in ten minutes.
test: $(READY)
	@$(BIN)/python -m tests.run test

# Which tests passed only when they were run again, in earlier runs of the gate.
unsteady: $(READY)
	@$(BIN)/python -m tests.run unsteady

# CPython for Windows under Wine, fetched into a cache directory: every module imports there.
test-windows: $(READY)
	@$(BIN)/python -m tests.windows_host

# Every test there is, none a second time: guest kernels, other people's suites, benches once, coverage. An hour, or in
# parts: make test-all PARTS="caller user", then PARTS="coverage guests"
test-all: $(READY)
	@$(BIN)/python -m tests.run all $(PARTS)

# Long fuzzing, endurance, whole corpora.
soak: $(READY)
	@$(BIN)/python -m tests.run soak

check: $(READY)
	$(BIN)/ruff check src tests bench examples release
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/unit/test_layers.py

# All questions, or some: make bench BENCH="--effort short python_snippet bin_true"
bench: $(READY)
	$(BIN)/python -m bench $(BENCH)

# Every cheat against our proctor, with its control and its honest twin; writes the table.
corpus: $(READY)
	@$(BIN)/ringfence corpus --results corpus/RESULTS.md

# sdist and wheels into dist/, byte for byte the same each time (docs/release.md).
dist: $(READY)
	@RINGFENCE_RELEASE_KEY=$(RINGFENCE_RELEASE_KEY) $(BIN)/python -m release.dist

# The site of the documents, in build/site: generated pages anew, links checked, nothing loaded from elsewhere.
docs: $(READY) $(VENV)-docs/.ready
	@$(BIN)/python -m tests.reference_pages
	@$(BIN)/python -m tests.site $(VENV)-docs/bin/python

$(VENV)-docs/.ready: pyproject.toml
	@echo "setting up $(VENV)-docs (once)"
	@$(PYTHON) -m venv $(VENV)-docs
	@$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' \
	  | $(VENV)-docs/bin/python -m pip install --quiet --disable-pip-version-check --requirement /dev/stdin 2>&1 | grep -v '^WARNING' || true
	@$(VENV)-docs/bin/python -c 'import material, mkdocs'
	@touch $@

# The package alone: a newcomer's first look waits for nothing else.
$(VENV)/.installed: pyproject.toml
	@echo "setting up $(VENV) (once)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ringfence needs Python 3.11 or later")'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . 2>&1 | grep -v '^WARNING' || true
	@$(BIN)/python -c 'import ringfence, yaml'
	@# As an installation from a wheel has it: where PYTHONDONTWRITEBYTECODE is set, each start would compile all of it.
	@$(BIN)/python -m compileall -q src/ringfence
	@touch $@

# And what tests need.
$(VENV)/.ready: $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip 2>&1 | grep -v '^WARNING' || true
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' 2>&1 | grep -v '^WARNING' || true
	@$(BIN)/python -c 'import pytest, mypy'
	@touch $@

# Filters as bytes, and the parts in C where there is a compiler; everything works without.
$(VENV)/.native: hatch_build.py $(wildcard src/ringfence/native/*.[ch] src/ringfence/kernel/seccomp/*.py) src/ringfence/kernel/syscall_numbers.py | $(VENV)/.installed
	@$(BIN)/python hatch_build.py >/dev/null
	@touch $@

clean:
	rm -rf $(VENV) $(VENV)-docs build .mypy_cache .ruff_cache .pytest_cache .coverage* htmlcov bench/results dist
