# Needs Python 3.11 or newer and make; every target below sets up what it uses.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed
# The environment is made with the first of these that is new enough; name another one with
# make install PYTHON=/path/to/python3
PYTHON ?= python3.11 python3.12 python3.13 python3
FAST_TESTS := tests/unit tests/property tests/architecture
DRILLS := tests/drills
# Two makes at once take turns at installing.
IN_TURN := $(if $(shell command -v flock),flock Makefile)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV

define FIND_PYTHON
	python= bare=; \
	for candidate in $(PYTHON); do \
	  "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue; \
	  if "$$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	  bare=$${bare:-$$candidate}; \
	done; \
	if [ -z "$$python" ] && [ -n "$$bare" ]; then \
	  echo "$$bare is new enough but lacks the modules venv and ensurepip." \
	    "On Debian or Ubuntu: apt install python3-venv (or python3.11-venv, by its version)." >&2; exit 1; \
	elif [ -z "$$python" ]; then \
	  echo "Tuneyard needs Python 3.11 or newer, and none was found under these names: $(PYTHON)." \
	    "Install one, or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; \
	fi
endef

##@ Use it

.PHONY: install
install: ## Make .venv with everything locked; nothing to do when it is up to date
	@$(IN_TURN) $(MAKE) --no-print-directory --silent $(STAMP)

.PHONY: demo
demo: install ## Train the sweep of examples/dates.yaml, register its best model, print predictions
	$(BIN)/tuneyard sweep run examples/dates.yaml
	$(BIN)/tuneyard model predict dates@candidate "3 March 2024" "3 mars 2024" "3. März 2024" "2024年3月3日"

##@ Work on it

.PHONY: check
check: lint ## Lint, types, import walls and the fast tests: before every commit
	$(BIN)/pytest --numprocesses 2 --dist loadfile $(FAST_TESTS)

.PHONY: test
test: check ## What CI runs: check, and then all other tests, with real Ray and real MLflow
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(FAST_TESTS:%=--ignore=%) --ignore=$(DRILLS)

.PHONY: drills
drills: install ## Kill -9 every part in the midst of a sweep, send the service thousands of requests: up to an hour
	$(BIN)/pytest $(DRILLS)

.PHONY: bench
bench: install ## Measure what Tuneyard itself costs, against its bounds, as JSON: minutes, on a machine that is idle
	@$(BIN)/python tests/benchmarks

.PHONY: lint
lint: install ## Format, lint, types and import walls
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

.PHONY: format
format: install ## Bring the code into the house format; mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: lock
lock: ## Resolve the newest allowed versions into requirements.lock
	@$(FIND_PYTHON); rm -rf build/lock && "$$python" -m venv build/lock
	build/lock/bin/pip install --quiet '.[train,dev]'
	@{ echo "# Every package that tuneyard[train,dev] installs, resolved for Linux and Python 3.11. Written by: make lock"; \
	  echo "# torch carries no build label: its platform's build comes, on x86-64 the CUDA one, which brings the nvidia packages of its choice."; \
	  build/lock/bin/pip list --format=freeze --exclude pip --exclude tuneyard \
	    | sed 's/+[A-Za-z0-9.]*$$//' | grep -Piv '^(nvidia-(?!ml-py==)|cuda-|triton==)' | LC_ALL=C sort -f; } >build/requirements.lock
	mv build/requirements.lock requirements.lock
	rm -rf build/lock

.PHONY: clean
clean: ## Remove the environment, builds and caches; sweeps under .tuneyard stay
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find services pipelines lightning_modules tests -type d -name __pycache__ -prune -exec rm -rf {} +

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The stamp comes last, so that an environment without one is never taken for whole: it is built anew where an
# install of ours was cut short, and completed where somebody else made it.
$(STAMP): requirements.lock pyproject.toml
	@if [ -e $(VENV)/.installing ]; then echo "The last install was cut short: starting again."; rm -rf $(VENV); fi
	@if ! [ -x $(BIN)/python ]; then $(FIND_PYTHON); "$$python" -m venv $(VENV); fi
	@touch $(VENV)/.installing && rm -f $(STAMP)
	@echo "Installing into $(VENV): a few minutes the first time."
	$(BIN)/pip install --quiet --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@rm $(VENV)/.installing && touch $(STAMP)
