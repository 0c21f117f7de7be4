# `make run` and `make test` each do everything from a fresh clone: environment, installation and the thing itself.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# options for the program that a target runs, such as ARGS="--preset paper" or ARGS="-k resume"
ARGS ?=

.PHONY: run test fast mutants lint docs release

run: $(READY)
	$(BIN)/python recipes/cifar_radfed.py $(ARGS)

test: $(READY)
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 2 --dist loadfile -q $(ARGS)

# the tests that a change touches; ARGS="--since main" compares with another commit than HEAD
fast: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python tests/fast.py $(ARGS)

# 600 small faults in the code that the tests should notice; ARGS=--short tries every tenth
mutants: $(READY)
	$(BIN)/python -m tests.mutation $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	@! grep -rnE '\b(trainer|pl_module|strategy|fit_loop)\._[a-z]' fl_lightning --include='*.py' --exclude-dir=_lightning \
		|| (echo "Only fl_lightning/_lightning may use Lightning's private names: put what needs them there."; exit 1)

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 PYTHONWARNINGS=ignore $(BIN)/mkdocs build --strict

# a release of the last commit, built, checked and tried; HOME_PAGE=https://... is the address of the repository
release: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[release]"
	$(BIN)/python tools/release.py --home "$(HOME_PAGE)" $(ARGS)

$(READY): pyproject.toml
	@echo "Setting up $(VENV): PyTorch and the other packages are about 5 GB; this takes some minutes, once."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $(READY)
