# `make demo` and `make test` are all a fresh machine needs; both build .venv on their first call.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test test-faults check docs wheel-check bench clean
.DELETE_ON_ERROR:

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("isles needs Python 3.11 or newer, found " + sys.version.split()[0] + "; set PYTHON=") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: setup
	$(BIN)/python examples/demo.py

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# the site of docs/, to open at build/docs/index.html
docs: setup
	$(BIN)/python -m sphinx -q -E -W --keep-going -d build/doctrees docs build/docs

test: check
	$(BIN)/python -m pytest -n auto --dist loadgroup

# kills processes and nodes for about ten minutes; by itself, since it fills the machine
test-faults: setup
	$(BIN)/python -m pytest -m faults tests/faults -s

# the package as users get it: built, installed into an empty environment, and run there
wheel-check: setup
	PYTHON=$(BIN)/python scripts/check_wheel.sh

# peers need an environment of their own; torch by exact version, since others may pull in gigabytes for GPUs
bench: .venv-bench/ready
	ISLES_DATA="$${ISLES_DATA:?names the folder with australian.csv and mnist.npz}" .venv-bench/bin/python -W ignore -m benchmarks

.venv-bench/ready: pyproject.toml constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -r benchmarks/requirements.txt -e .
	# particles works with NumPy 2, but its metadata forbid it
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --no-deps particles==0.4
	@touch $@

# bde pins an old blackjax; `python -m benchmarks.bde` calls this environment's interpreter
.venv-bde/ready: benchmarks/requirements-bde.txt
	$(PYTHON) -m venv .venv-bde
	.venv-bde/bin/python -m pip install --quiet --disable-pip-version-check -r benchmarks/requirements-bde.txt
	@touch $@

clean:
	rm -rf .venv .venv-bench .venv-bde build .mypy_cache .pytest_cache .ruff_cache
