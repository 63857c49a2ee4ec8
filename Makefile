# Tidecast. `make` lists the targets. Only Python 3.11 to 3.13 and make are presumed on the machine.

.DEFAULT_GOAL := help
.ONESHELL:
.NOTPARALLEL:
SHELL := /bin/sh
.SHELLFLAGS := -euc

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BYTECODE := $(VENV)/.compiled
SOURCES := $(shell find engine backend -name '*.py')
PYTHON ?= python3
ARGS ?=

# More workers than cores: tests wait for processes, disks and clocks.
WORKERS ?= 5
SECONDS ?= 60
MESSAGES ?= 10000000
SHARDS ?= 8
SINCE ?= origin/main
# Pytest keeps each test's module with its assertions rewritten: a third of the time that it collects.
export PYTHONDONTWRITEBYTECODE :=
LONG := $(BIN)/python -m pytest -m long --timeout 1800 -o faulthandler_timeout=3600
FAST := -m "not long" -n $(WORKERS) --dist loadgroup
PAGE := backend/tidecast_control/static/.built
PAGE_SOURCES := backend/openapi.json $(shell find frontend -path frontend/node_modules -prune \
	-o -path frontend/test -prune -o -type f ! -name schema.d.ts -print)

.PHONY: help checks install install-dev install-spark up dashboard docs test test-fast test-dashboard test-checked test-long test-nightly test-cluster test-changed mutation swarm bench lint format clean

help: ## this list
	@echo "Tidecast: make TARGET [ARGS='...']"
	sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | while IFS='|' read -r name text; do
		printf '%-14s %s\n' "$$name" "$$text"
	done

install: $(BYTECODE) ## make .venv with an editable install: .venv/bin/tidecast
	@:

install-dev: $(BYTECODE) $(VENV)/.installed-dev ## and the tools that test and check the sources
	@:

# An editable install leaves this to the first import, and where Python is told to write nothing
# (PYTHONDONTWRITEBYTECODE) each start would compile all sources anew: 0.4 s of CPU.
$(BYTECODE): $(STAMP) $(SOURCES)
	@$(BIN)/python -m compileall -q engine/tidecast backend/*/ || true
	touch $@

install-spark: $(VENV)/.installed-spark ## and PySpark with a Java of its own (500 MB) into .venv
	@:

# $(call add,EXTRA): install one more extra, with the installer that made .venv.
define add
	if $(BIN)/python -m pip --version >/dev/null 2>&1; then
		$(BIN)/python -m pip --disable-pip-version-check install --quiet --editable '.[$(1)]'
	else
		uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[$(1)]'
	fi
	touch $@
endef

$(VENV)/.installed-dev: $(STAMP)
	@echo "Installing the developer's tools into $(VENV) ..."
	$(call add,dev)

$(VENV)/.installed-spark: $(STAMP)
	@echo "Installing PySpark into $(VENV) ..."
	$(call add,spark)

dashboard: $(PAGE) ## build the dashboard that the control service serves (quick when nothing changed)
	@:

$(PAGE): $(STAMP) $(PAGE_SOURCES)
	@echo "Building the dashboard ..."
	frontend/with-node build
	touch $@

$(VENV)/.installed-docs: $(STAMP)
	@echo "Installing the documentation's tools into $(VENV) ..."
	$(call add,docs)

docs: $(VENV)/.installed-docs ## build the documentation site into site/, strictly: every link is checked
	@$(BIN)/python -m mkdocs build --strict --quiet --clean
	echo "Done: site/index.html"

up: install dashboard ## start Tidecast on this machine (ARGS: options of `tidecast up`)
	@exec $(BIN)/tidecast up $(ARGS)

# Each test runs once (tests/parts.py). Checks and the checked build compute on what the others leave
# idle, which wait for processes, disks and clocks; each of them tells when the others are over.
test: install-dev dashboard ## lint and the fast tests, those of kernels in a checked build
	@told=$$(mktemp -d)
	trap 'kill $$checks $$checked 2>/dev/null || true; rm -rf "$$told"' EXIT
	nice -n 10 $(MAKE) --no-print-directory checks >"$$told/checks" 2>&1 & checks=$$!
	nice -n 5 $(MAKE) --no-print-directory test-checked >"$$told/checked" 2>&1 & checked=$$!
	failed=
	$(BIN)/python -m pytest $(FAST) --part rest $(ARGS) || failed="$$failed, the fast tests"
	wait $$checked || failed="$$failed, the checked build"
	cat "$$told/checked"
	wait $$checks || failed="$$failed, the checks"
	cat "$$told/checks"
	if [ -n "$$failed" ]; then echo "Failed: $${failed#, }. See above" >&2; exit 1; fi

test-fast: install-dev dashboard ## the fast tests alone (ARGS: options of pytest)
	@$(BIN)/python -m pytest $(FAST) $(ARGS)

test-dashboard: install ## the dashboard's unit tests (its tests in a browser: tests/e2e, with the fast tests)
	@frontend/with-node test

test-checked: install-dev ## the kernels' tests with every load and store checked
	@echo "Checked build: TIDECAST_BOUNDSCHECK=1"
	exec env TIDECAST_BOUNDSCHECK=1 $(BIN)/python -m pytest $(FAST) --part kernels $(ARGS)

mutation: install-dev ## faults put into the code, which tests must find (ARGS: names, --shard 1/8)
	@exec $(BIN)/python -m tests.mutation $(ARGS)

test-long: install-dev ## the long tests: soak, fuzzing, big simulations
	@$(LONG) $(ARGS)

# Each shard is a process of its own, so that memory and platforms of one do not reach the next.
test-nightly: install-dev ## the long tests in shards, kernels in the release build, new worlds (SHARDS=8, SECONDS=60)
	@failed=
	for number in $$(seq $(SHARDS)); do
		echo "Shard $$number of $(SHARDS)"
		$(LONG) --shard $$number/$(SHARDS) $(ARGS) || failed="$$failed $$number"
	done
	$(BIN)/python -m pytest $(FAST) --part kernels $(ARGS) || failed="$$failed kernels"
	$(BIN)/python -m tests.swarm --seconds $(SECONDS) || failed="$$failed swarm"
	if [ -n "$$failed" ]; then echo "Failed:$$failed"; exit 1; fi

test-changed: install-dev ## the long tests and mutations that a change touches (SINCE=origin/main)
	@exec $(BIN)/python -m tests.changed --since $(SINCE) $(ARGS)

# MESSAGES: of the live topics in all; SECONDS: how long the owners of durable topics are troubled.
test-cluster: install-dev ## engines on hosts of their own (root): loss, cuts, kills, steps of clocks
	@TIDECAST_CLUSTER_MESSAGES=$(MESSAGES) TIDECAST_CLUSTER_SECONDS=$(SECONDS) \
		$(BIN)/python -m pytest tests/cluster -rs --timeout 3600 -o faulthandler_timeout=3600 $(ARGS)

swarm: install-dev ## worlds by new seeds (SECONDS=60, SEED: the first one); failures are shrunk into .swarm
	@exec $(BIN)/python -m tests.swarm --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(ARGS)

bench: install ## all benchmarks, one JSON object a line (ARGS: options of `tidecast bench`)
	@exec $(BIN)/tidecast bench all --json $(ARGS)

# $(call check,COMMANDS): all that is checked without a test of pytest; beside it what checks the page.
define check
	$(BIN)/mypy & types=$$!
	{ $(1); } & page=$$!
	failed=
	$(BIN)/ruff check --no-cache . || failed=1
	$(BIN)/ruff format --no-cache --check . || failed=1
	$(BIN)/lint-imports --no-logo --no-cache || failed=1
	wait $$types || failed=1
	wait $$page || failed=1
	test -z "$$failed"
endef

lint: install-dev ## ruff, mypy --strict, import contracts; biome and tsc for the dashboard
	@$(call check,frontend/with-node lint)

# As `make lint test-dashboard`, side by side: the one waits for a single core.
checks: install-dev
	@$(call check,frontend/with-node lint && frontend/with-node test)

format: install-dev ## rewrite sources as `make lint` wants them
	@$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .
	frontend/with-node format

clean: ## remove what building and testing left behind (not .venv)
	@rm -rf dist build site .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage benchmarks/out \
		$(BYTECODE)
	find engine tests benchmarks backend -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

# Done again when the dependencies change, or when a package folder appears that an editable install
# has to put on the path.
$(STAMP): pyproject.toml $(wildcard backend/*/__init__.py)
	@fail() { printf '\nmake install: %s\n' "$$*" >&2; exit 1; }
	runs() { "$$@" >/dev/null 2>&1; }
	new_enough='import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))'
	python=
	for candidate in "$(PYTHON)" python3 python3.13 python3.12 python3.11; do
		if runs "$$candidate" -c "$$new_enough"; then python=$$candidate; break; fi
	done
	if ! runs $(BIN)/python -c "$$new_enough"; then
		rm -rf $(VENV)
		if [ -n "$$python" ] && runs "$$python" -c 'import ensurepip, venv'; then
			"$$python" -m venv $(VENV)
		elif [ -n "$$python" ] && runs "$$python" -c 'import venv'; then
			"$$python" -m venv --without-pip $(VENV)
		elif runs uv --version; then
			uv venv --quiet --python '>=3.11,<3.14' $(VENV)
		elif [ -n "$$python" ]; then
			fail "$$python has no venv module. On Debian or Ubuntu: apt-get install python3-venv"
		else
			fail "needs Python 3.11, 3.12 or 3.13; found $$(python3 --version 2>/dev/null || echo none)." \
				"Install one, or name it: make install PYTHON=/path/to/python3.12"
		fi
	fi
	if runs $(BIN)/python -m pip --version; then
		installer="$(BIN)/python -m pip --disable-pip-version-check install --quiet"
	elif runs uv --version; then
		installer="uv pip install --quiet --compile-bytecode --python $(BIN)/python"
	elif runs "$$python" -m pip --python $(BIN)/python install pip; then
		installer="$(BIN)/python -m pip --disable-pip-version-check install --quiet"
	else
		fail "$$python cannot put pip into a virtual environment (it lacks ensurepip)." \
			"On Debian or Ubuntu: apt-get install python3-venv. Elsewhere: install uv."
	fi
	echo "Installing Tidecast into $(VENV) (half a minute the first time) ..."
	$$installer --editable '.[arrow,control]' || fail "could not install the dependencies (see above)." \
		"They come from PyPI: check the network, or the index that pip is set to use."
	touch $@
	echo "Done: $(BIN)/tidecast"
