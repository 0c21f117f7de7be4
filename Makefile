# `make run` and `make test` each do everything from a fresh clone: environment, installation and the thing itself.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# options for the program that a target runs, such as ARGS="--preset paper" or ARGS="-k resume"
ARGS ?=

.PHONY: run test mutants lint docs

run: $(READY)
	$(BIN)/python recipes/cifar_radfed.py $(ARGS)

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -q $(ARGS)

# small faults in the code that the tests should notice, such as ARGS='--faults 200 --seed 1 "fl_lightning/parts/*"'
mutants: $(READY)
	$(BIN)/python -m tests.mutation $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

$(READY): pyproject.toml
	@echo "Setting up $(VENV): PyTorch and the other packages are about 5 GB; this takes some minutes, once."
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $(READY)
