# `make run` and `make test` do all the set-up they need: Python 3.11 or later and make are enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: run test lint bench docs gpu clean

run: $(VENV)/.installed
	@$(BIN)/blis run --workload-spec workloads/mixed-slo.yaml --model qwen3-14b --gpu h100 \
		--num-instances 4 --scheduler priority-fcfs --format table

test: $(VENV)/.installed-dev
	$(BIN)/pytest -n auto

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/speed.py

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/make_pictures.py

gpu:
	@echo "Nothing here runs on a GPU yet: the engine, its kernels and their measurements come with engine/." >&2
	@exit 1

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "blis-py needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP) --editable .
	$(BIN)/python -m compileall -q blis_py
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[dev,notebooks,engine]'
	@touch $@
