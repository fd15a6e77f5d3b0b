# Two commands matter: `make serve` and `make test`. Both create the environment they need.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL ?= smollm2-135m
PORT ?= 8000
# Tests of one file share their models and servers, so they stay in one process.
PYTEST := $(BIN)/python -m pytest
IN_PARALLEL := -n auto --maxprocesses=4 --dist=loadfile
# Setuptools warns of flat layouts at every editable install.
INSTALL := PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --editable

.PHONY: serve test test-clients test-emulated test-cuda bench-cuda check soak bench env clean

serve: $(VENV)/.native
	$(BIN)/octavo serve --model $(MODEL) --port $(PORT)

test: $(VENV)/.dev $(VENV)/.native
	$(BIN)/octavo fetch smollm2-135m
	$(PYTEST) $(IN_PARALLEL)

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

soak: $(VENV)/.dev $(VENV)/.native
	$(BIN)/octavo fetch smollm2-135m
	$(PYTEST) -m slow -rP

# The table of docs/performance.md, about half an hour; BENCH='--peers ...' for more, see its --help.
bench: $(VENV)/.dev $(VENV)/.native
	$(BIN)/octavo fetch smollm2-135m
	$(BIN)/python -m benchmarks.run $(BENCH)

# What others wrote against OpenAI's API, run against ours.
test-clients: $(VENV)/.clients
	$(PYTEST) -m clients

# The kernels' AVX-512 and AMX variants with emulated instructions, on any processor with AVX2.
test-emulated: $(VENV)/.dev
	$(PYTEST) -p emulated_isa -m 'not real_model and not slow' tests/engine/test_packed_linears.py \
	    tests/engine/test_native_attention.py tests/engine/test_native_block.py \
	    tests/engine/sampling

# On a machine with an NVIDIA GPU; elsewhere both fail and say that nothing was done.
test-cuda: $(VENV)/.dev
	@$(BIN)/python -c 'import sys, torch; \
	    torch.cuda.is_available() or sys.exit("nothing was tested: torch finds no CUDA device here")'
	$(BIN)/octavo fetch smollm2-135m
	$(PYTEST) -m cuda

# Ten minutes at most; BENCH='--model ...' for another model than one of random weights.
bench-cuda: $(VENV)/.dev
	$(BIN)/python -m benchmarks.cuda_bench $(BENCH)

env: $(VENV)/.dev

# One environment for both: the second stamp only adds what tests need.
$(VENV)/.server: pyproject.toml setup.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=24'
	@echo "installing (PyTorch is large: this takes some minutes the first time)"
	$(INSTALL) '.[server]'
	touch $@

$(VENV)/.dev: $(VENV)/.server
	$(INSTALL) '.[dev]'
	touch $@

# The CPU kernels: built by the install, and again whenever a source has changed. Without a compiler
# Octavo runs on torch alone.
$(VENV)/.native: $(VENV)/.server engine/native/build.py $(wildcard engine/native/*.cpp engine/native/*.h)
	$(BIN)/python -m engine.native.build || true
	touch $@

$(VENV)/.clients: $(VENV)/.dev
	$(INSTALL) '.[clients-test]'
	touch $@

clean:
	rm -rf $(VENV) engine/native/*.so build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
