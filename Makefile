# Sets up its own environment and hands over to hatch, where the work is (see pyproject.toml).
PYTHON ?= $(shell command -v python3.11 || command -v python3)
HATCH := .venv/bin/hatch
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help serve chat test test-slow check fmt bench docs clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'
	@echo '  Flags pass through ARGS, as in: make serve ARGS="--server-port 9000"'

serve: $(HATCH) ## serve the default model (or --model in ARGS) on 127.0.0.1:8000
	@$(HATCH) run serve $(ARGS)

chat: $(HATCH) ## talk to the default model in the terminal
	@$(HATCH) run atom chat $(ARGS)

test: $(HATCH) ## run the tests
	@$(HATCH) run test $(ARGS)

test-slow: $(HATCH) ## run the tests that take minutes or the network
	@$(HATCH) run test-slow $(ARGS)

check: $(HATCH) ## format, lint, import contracts and types
	@$(HATCH) run check

fmt: $(HATCH) ## format the code and mend what lint can
	@$(HATCH) run fmt

bench: $(HATCH) ## measure our engine beside transformers
	@$(HATCH) run bench $(ARGS)

docs: $(HATCH) ## write docs/configuration.md and the charts anew
	@$(HATCH) run docs

clean: ## remove the environments and caches of this folder
	rm -rf .venv .hatch .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(HATCH):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv .venv
	@.venv/bin/pip install --quiet --disable-pip-version-check 'hatch==1.18.2'
