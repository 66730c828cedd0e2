# `make run` and `make test` do all the set-up they need: Python 3.11 or later and make are enough.

PYTHON ?= python3
GPU_PYTHON ?= python3
GPU_OUT ?= benchmarks/results/gpu
GPU_BUDGET ?= 300
GPU_JOBS ?= gpu-tests bandwidth attention ops decode-steps diffusion throughput profiles
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# What compiling takes stands apart: the environment holds the simulator and nothing else.
COMPILER := $(CURDIR)/$(VENV)/compiler
native = (test -d $(COMPILER) || $(PIP) --target $(COMPILER) mypy setuptools) && \
	PYTHONPATH=$(COMPILER) $(BIN)/python -m blis_py.native
NATIVE_SOURCES := $(wildcard $(addsuffix /*.py,$(addprefix blis_py/,native core cluster latency)))

.PHONY: run native test fuzz lint bench docs gpu clean

run: $(VENV)/.native
	@$(BIN)/blis run --workload-spec workloads/mixed-slo.yaml --model qwen3-14b --gpu h100 \
		--num-instances 4 --scheduler priority-fcfs --format table

# The simulator's inner loop as native code: the same results, sooner. `make run` does it, too, but goes on where it
# does not work.
native: $(VENV)/.installed
	$(native)

# One thread per test process: they share the cores already.
test: export OMP_NUM_THREADS := 1
test: $(VENV)/.installed-dev
	$(BIN)/pytest -n auto

# 10,000 bad files for every reader and command, which takes hours; FUZZ='--inputs 500 --only replay' for some of it.
fuzz: $(VENV)/.installed-dev
	$(BIN)/python tests/fuzz/long.py $(FUZZ)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/.installed-dev $(VENV)/.native
	$(BIN)/python benchmarks/speed.py

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/make_pictures.py

# On a machine whose python3 has torch with CUDA, numpy, safetensors, PyYAML, pytest and hypothesis; installs nothing.
gpu: export PYTHONPATH := $(CURDIR)
gpu:
	@$(GPU_PYTHON) -c 'import sys, torch; sys.exit(not torch.cuda.is_available() and "make gpu needs a CUDA device and a torch that sees it; GPU_PYTHON=... names the Python to use")'
	@failed=; $(foreach job,$(GPU_JOBS),echo "$(job)"; $(GPU_PYTHON) $($(job)) || failed="$$failed $(job)";) \
		test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

gpu-tests := -m pytest tests/gpu
bandwidth := benchmarks/gpu/bandwidth.py --out $(GPU_OUT)
attention := benchmarks/gpu/attention.py --out $(GPU_OUT)
ops := benchmarks/gpu/ops.py --out $(GPU_OUT)
decode-steps := benchmarks/gpu/decode_steps.py --out $(GPU_OUT)
diffusion := benchmarks/gpu/diffusion.py --out $(GPU_OUT)
throughput := benchmarks/gpu/throughput.py --out $(GPU_OUT)
profiles := benchmarks/gpu/profile_campaign.py --budget $(GPU_BUDGET)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis blis_py/native/cpython-*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "blis-py needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP) --editable .
	$(BIN)/python -m compileall -q blis_py
	@touch $@

$(VENV)/.native: $(VENV)/.installed $(NATIVE_SOURCES)
	@$(native) || echo 'note: the simulator runs interpreted: the same results, later' >&2
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[dev,notebooks,engine]'
	@touch $@
