# Two commands do everything on a fresh machine:
#   make sweep   install, fetch the default model, find the best chunk_size on this machine
#   make test    install, run every test
# Both work again at once: the virtual environment and the model are kept.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip --disable-pip-version-check --quiet
ARGS   ?=
TEST_WORKERS ?= 2

.PHONY: sweep test dashboard install lint types layers check benchmarks clean help

sweep: $(VENV)/.installed ## Sweep chunk_size on SmolLM2 (ARGS="--budget 5m" passes options on)
	$(BIN)/workbench model fetch smollm2-135m
	$(BIN)/workbench sweep --param chunk_size $(ARGS)

test: $(VENV)/.installed-dev ## Run all tests (ARGS="-k kv" passes options on)
	$(BIN)/workbench model fetch smollm2-135m
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(TEST_WORKERS) --dist worksteal $(ARGS)

dashboard: $(VENV)/.installed ## Open the dashboard on ./runs
	$(BIN)/workbench dashboard $(ARGS)

install: $(VENV)/.installed-dev ## Only set up the virtual environment, developer tools included

lint: $(VENV)/.installed-dev ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev ## mypy
	$(BIN)/mypy

layers: $(VENV)/.installed-dev ## import-linter: an import never goes up
	$(BIN)/lint-imports

check: lint types layers test ## All that CI runs

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"Python 3.11 or newer is needed, {sys.executable} is {v[0]}.{v[1]}: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV) (a few minutes, once) ..."
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV), developer tools included (a few minutes, once) ..."
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@ $(VENV)/.installed

clean: ## Remove the virtual environment and caches (runs/ stays)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info

help:
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14
