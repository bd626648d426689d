# `serve` and `chat` run in .serve, which holds what serving needs. All else is a hatch script of pyproject.toml: it runs in
# .hatch/dev, which hatch makes, and .venv holds hatch.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# pip's "no": nothing is compiled to bytecode before it is imported, which would take longer than all else of an install.
export PIP_NO_COMPILE := 0
HATCH := .venv/bin/hatch
SERVE := .serve/bin/atom
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup serve chat test test-changed test-timing test-slow test-vllm test-ray ci conformance check check-changed fmt hooks bench docs site build clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'
	@echo '  Flags pass through ARGS, as in: make serve ARGS="--port 9000"'

setup: $(HATCH) ## make the development environment (each target that needs it does so too)
	@$(HATCH) run true

serve: $(SERVE) ## serve the default model (or --model in ARGS) on 127.0.0.1:8000
	@$(SERVE) serve $(ARGS)

chat: $(SERVE) ## talk to the default model in the terminal
	@$(SERVE) chat $(ARGS)

test: $(HATCH) ## run the tests
	@$(HATCH) run test $(ARGS)

test-changed: $(HATCH) ## run the tests nearest to what differs from main, for two minutes
	@$(HATCH) run test-changed $(ARGS)

test-timing: $(HATCH) ## run the tests that judge seconds, which want a machine to themselves
	@$(HATCH) run test-timing $(ARGS)

test-slow: $(HATCH) ## run the tests that take minutes or a package index
	@$(HATCH) run test-slow $(ARGS)

test-vllm: $(HATCH) ## run our models and attention inside of vLLM, two versions (makes .vllm, 7 GB)
	@$(HATCH) run test-vllm $(ARGS)

test-ray: $(HATCH) ## run ranks on two hosts, placed by Ray (makes .ray, 300 MB; wants root)
	@$(HATCH) run test-ray $(ARGS)

ci: $(HATCH) ## run the checks and all tests but those that need a network, and sum up
	@$(PYTHON) -m tools.ci

conformance: $(HATCH) ## run outside clients against the server (SUITE ... and --skip-unavailable in ARGS)
	@$(HATCH) run conformance $(ARGS)

check: $(HATCH) ## check format, lint, import contracts and types
	@$(HATCH) run check

check-changed: $(HATCH) ## the same for the files that differ from main
	@$(HATCH) run check-changed $(ARGS)

fmt: $(HATCH) ## mend what lint can, and format
	@$(HATCH) run fmt

hooks: $(HATCH) ## from now on run the quick checks before each commit, and the tests of the change before each push
	@$(HATCH) run pre-commit install --hook-type pre-commit --hook-type pre-push

bench: $(HATCH) ## measure our engine beside transformers
	@$(HATCH) run bench $(ARGS)

docs: $(HATCH) ## write docs/configuration.md and the charts anew
	@$(HATCH) run docs

site: $(HATCH) ## build the pages and the dashboard into site/, strictly (makes .hatch/site)
	@$(HATCH) run site:build
	@$(HATCH) run dashboard --output site/dashboard.html

build: $(HATCH) ## build the packages' wheels into dist/
	@$(HATCH) run build

clean: ## remove the environments and caches of this folder
	rm -rf .serve .venv .hatch .conformance .vllm .ray dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache site

# A package that asks for something new has the environment made anew.
$(SERVE): Makefile tools/serve_environment.py $(wildcard packages/*/pyproject.toml)
	@$(check-python)
	@$(PYTHON) -m tools.serve_environment .serve
	@touch $@

$(HATCH): Makefile tools/development_environment.py $(wildcard tools/locked/*.txt)
	@$(check-python)
	@$(PYTHON) -m tools.development_environment
	@$@ run true
	@touch $@

define check-python
$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11" if sys.version_info < (3, 11) else 0)'
endef
