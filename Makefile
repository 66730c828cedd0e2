# `make run` and `make test` do all the set-up they need: Python 3.11 or later and make are enough.

PYTHON ?= python3
GPU_PYTHON ?= python3
GPU_DEVICE ?= cuda
OUT ?= out/gpu
JOB ?=
REHEARSAL ?= out/rehearsal
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

# Installed in place, its sources are going to change: native code is made where it is wanted, and not for a wheel.
export HATCH_BUILD_NO_HOOKS := true

# Bytecode is kept, that of the tests too: reading the sources again takes each process 15 s.
unexport PYTHONDONTWRITEBYTECODE

# What compiling takes stands apart: the environment holds the simulator and nothing else.
COMPILER := $(CURDIR)/$(VENV)/compiler
native = (test -d $(COMPILER) || $(PIP) --target $(COMPILER) mypy setuptools) && \
	PYTHONPATH=$(COMPILER) $(BIN)/python -m blis_py.native
NATIVE_SOURCES := $(wildcard $(addsuffix /*.py,$(addprefix blis_py/,native core cluster cluster/* latency metrics)))

# What `make check` tests: the simulator, its theory and invariants, every command once, and how code is written.
CHECKED := $(addprefix tests/,core cluster metrics latency workload traces files ledger outputs properties theory \
	oracles planning extension cli lint)

.PHONY: run ui serve test-ui test-serve native check test truth fuzz soak soak-engine test-long mutants engines track lint aot bench docs docs-ui \
	site release gpu gpu-wheels gpu-home gpu-rehearsal clean

run: $(VENV)/.native
	@$(BIN)/blis run --workload-spec workloads/mixed-slo.yaml --model qwen3-14b --gpu h100 \
		--num-instances 4 --scheduler priority-fcfs --format table

# The page that simulates again while settings are moved: the same hour of traffic. UI='trace.csv' for another.
ui: $(VENV)/.native
	@$(PIP) --editable '.[ui]'
	@$(BIN)/blis ui $(UI)

# Four simulated instances under the OpenAI API, and one answer of theirs as a stream.
serve: $(VENV)/.installed-serve
	@$(BIN)/python docs/serve_demo.py

# Clients and gateways from PyPI, each in an environment of its own, and thousands of streams.
test-serve: export PYTHONPATH := $(CURDIR)
test-serve: $(VENV)/.installed-dev $(VENV)/.installed-serve
	$(BIN)/python tests/serve/long/clients.py $(CLIENTS)
	$(BIN)/python tests/serve/long/stress.py $(STRESS)
	$(BIN)/python tests/serve/long/hostile_requests.py

# The simulator's inner loop as native code: the same results, sooner. `make run` does it, too, but goes on where it
# does not work.
native: $(VENV)/.installed
	$(native)

# Before every commit, in less than a minute: style, types and contracts of `blis_py`, and the tests of CHECKED but
# the slow ones. Installs no torch.
check: $(VENV)/.installed-check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy blis_py
	$(BIN)/pytest -n auto --dist worksteal -m 'not slow' $(CHECKED)

# All tests. Of the two parts, `tests/conftest.py` says which folders run in native code, where there is a C compiler.
# One thread per test process: they share the cores already.
test: export OMP_NUM_THREADS := 1
test: $(VENV)/.installed-dev $(VENV)/.native
	$(BIN)/pytest -n auto --dist worksteal --part native
	$(BIN)/pytest -n auto --dist worksteal --part interpreted

# Whether every recorded run and page of `../shared/data` is predicted as well as at the last commit: what moved, and
# an error where something is worse. TRUTH='--whole' for what takes hours, too, --only h100, --accept for new figures.
truth: export OMP_NUM_THREADS := 1
truth: $(VENV)/.installed-dev $(VENV)/.native
	$(BIN)/python benchmarks/accuracy/truth.py ../shared/data $(TRUTH)

# The tests that take longest: whole campaigns and compilers.
test-long: export OMP_NUM_THREADS := 1
test-long: $(VENV)/.installed-dev
	$(BIN)/pytest -n auto --dist worksteal -m long

# The page and reports in a headless Chromium (Debian: apt-get install chromium), with axe-core from npm. What is
# not there is skipped with a word.
test-ui: export BLIS_BROWSER_TESTS := 1
test-ui: $(VENV)/.installed-dev
	@$(PIP) playwright || echo 'note: Playwright could not be installed' >&2
	@test -e $(VENV)/axe/package/axe.min.js || (mkdir -p $(VENV)/axe && cd $(VENV)/axe && \
		npm pack --silent axe-core@4.10.3 && tar xzf axe-core-*.tgz package/axe.min.js) || \
		echo 'note: axe-core could not be fetched' >&2
	$(BIN)/pytest tests/browser -rs

# 10,000 bad files for every reader and command, which takes hours; FUZZ='--inputs 500 --only replay' for some of it.
fuzz: $(VENV)/.installed-check
	$(BIN)/python tests/fuzz/long.py $(FUZZ)

# 3,000 random configurations, jumps against single steps, with every invariant; SOAK='--runs 100 --seed 7' for others.
# Then 10,000 scenarios beside the newest vLLM and 300 beside each release, and the suite as other processors run it, which
# takes an hour; PROCESSORS='tests/golden' for a part.
soak: $(VENV)/.installed-dev
	$(BIN)/python tests/soak/soak.py $(SOAK)
	PYTHONPATH=$(CURDIR) $(BIN)/python tests/soak/engine_decisions.py $(DECISIONS)
	$(BIN)/python tests/soak/random_fleets.py
	$(BIN)/python tests/soak/price_orders.py $(ORDERS)
	$(BIN)/python tests/soak/processors.py $(PROCESSORS)

# 3,000 outputs of the engine under random settings, beside each request alone; SOAK='--outputs 500 --seed 7' for others.
soak-engine: $(VENV)/.installed-check
	$(BIN)/python tests/soak/engine_outputs.py $(SOAK)

# How many of 300 small mistakes in the simulator its tests notice, and how many without the folder `shared`; takes hours
# and goes on where it was stopped. MUTANTS='--sample 20 --seed 7 --workers 2' for others, --by-hand for those of old.
mutants: $(VENV)/.installed-check
	$(BIN)/python tests/mutants/mutants.py $(MUTANTS)

# The schedulers of engines, from their wheels, beside ours on 100 random scenarios of each of some releases: a table, and
# an error where a step differs. ENGINES='--engines vllm --versions 0.29 --scenarios 500 --seed 7' for others. Wheels are
# kept in the user's cache.
engines: export PYTHONPATH := $(CURDIR)
engines: $(VENV)/.installed-dev
	$(BIN)/python -m benchmarks.engines.check $(ENGINES)
	$(BIN)/python -m benchmarks.engines.defaults

# What a release that was not seen before needs of the preset: make track VERSION=0.34.0, TRACK='--engine sglang' for another
# engine.
track: export PYTHONPATH := $(CURDIR)
track: $(VENV)/.installed
	$(BIN)/python -m benchmarks.engines.track $(VERSION) $(TRACK)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -q tests/lint/test_words.py tests/lint/test_structure.py tests/lint/test_docstrings.py \
		tests/lint/test_units.py

# Every Triton kernel in every variant that an engine of a bundled model can launch, with either kind of KV cache, and
# those of architectures that have no bundled model, compiled for an H100 or H200 and checked for spills, shared memory
# and instructions. No GPU is needed, but an hour or two: it goes on where it was stopped. AOT='--budget-s 280' for a
# part of it, --model, --only and others for a selection.
aot: $(VENV)/.installed-dev
	@mkdir -p out
	$(BIN)/python -m engine.kernels.aot --target cuda:90 --block-size 16 32 64 128 256 --dtype bfloat16 float16 \
		--kv-cache-dtype auto fp8 --dependent-launch --also tests/engine/kernels/architectures/*.json \
		--checked out/aot.jsonl $(AOT)

bench: $(VENV)/.installed-dev $(VENV)/.native
	$(BIN)/python benchmarks/speed.py

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/make_pictures.py

# The screenshots of the page and of a report; takes Chromium.
docs-ui: $(VENV)/.installed-dev
	@$(PIP) playwright
	$(BIN)/python docs/ui_pictures.py

# The guides and the API reference as a site in `out/site`, by tools that stand apart from the environment.
site: $(VENV)/.site
	NO_MKDOCS_2_WARNING=1 $(VENV)/site/bin/mkdocs build --quiet

# An sdist, and wheels for every Python from 3.11 to 3.13 that is here, each run where nothing else of this is; RELEASE=--tag gives the
# commit the tag of its version then, RELEASE=--check-tag refuses one without.
release:
	$(PYTHON) release/release.py $(RELEASE)

# On a machine whose python3 has torch with CUDA, numpy, safetensors, PyYAML, pytest and hypothesis; installs nothing.
# docs/gpu.md tells what the jobs are, and the same call without make. GIVEN=... is what an earlier call left in OUT.
gpu: export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
gpu:
	@$(GPU_PYTHON) benchmarks/gpu/campaign.py $(JOB) --out $(OUT) --device $(GPU_DEVICE) \
		$(if $(GIVEN),--given $(GIVEN)) $(if $(WHEELS),--wheels $(WHEELS)) $(if $(AGAIN),--again $(AGAIN))

# Wheels for Python 3.12 on a machine that cannot fetch any: constrained decoding and the simulator. WHEELS=... names
# the folder, here and for `make gpu`.
gpu-wheels: $(VENV)/.installed
	$(BIN)/python -m pip download --quiet --no-deps --only-binary=:all: --constraint constraints.txt \
		--python-version 3.12 --implementation cp $(addprefix --platform manylinux,_2_28_x86_64 _2_27_x86_64 \
		_2_17_x86_64 2014_x86_64) --dest $(or $(WHEELS),wheels) xgrammar apache-tvm-ffi pydantic pydantic-core \
		annotated-types typing-inspection simpy

# What `make gpu` left in OUT, as results, tables and profiles of this checkout.
gpu-home: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/gpu/bring_home.py $(OUT)

# The whole campaign without a GPU, as it would run where there is one: no repository, no pydantic, no simpy.
gpu-rehearsal: export PYTHONPATH := $(CURDIR)
gpu-rehearsal: $(VENV)/.installed-dev
	$(BIN)/python benchmarks/gpu/rehearsal.py --to $(REHEARSAL) \
		$(if $(REHEARSAL_PYTHON),--python $(REHEARSAL_PYTHON))

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

$(VENV)/.installed-serve: $(VENV)/.installed
	$(PIP) --editable '.[serve]'
	@touch $@

$(VENV)/.site: $(VENV)/.created constraints.txt
	$(PYTHON) -m venv $(VENV)/site
	$(VENV)/site/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt \
		mkdocs-material 'mkdocstrings[python]'
	@touch $@

$(VENV)/.installed-check: $(VENV)/.installed
	$(PIP) --editable '.[dev,serve,frames,plots,fit]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-check
	$(PIP) --editable '.[dev,test,notebooks,engine,dask,plan,report,ui,serve]'
	@touch $@
