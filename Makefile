# Everything from a bare checkout: make, and a Python of 3.11 or newer. `make help` lists what there is.

VENV := .venv
PYTHON_IN := $(VENV)/bin/python
UV := $(VENV)/uv/bin/uv
UV_VERSION := 0.13.7
# Where PYTHONDONTWRITEBYTECODE is set, pytest would compile every test again for each run and worker.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(PYTHON_IN) -m pytest
SOURCES := $(shell find src -name '*.py')
CHECKS := check-types check-imports check-lock check-format check-style

# The machine's python3 may be an old one that stands beside a newer one. PYTHON=... names one outright.
FIND_PYTHON = for name in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	"$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$name" && exit; done

.DEFAULT_GOAL := help
.PHONY: help install demo test test-quick long lint bench crash soak lock wheel clean
.PHONY: $(CHECKS)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/.compiled ## the environment in .venv, and the jars; a second run fetches nothing
	@$(PYTHON_IN) -m penstock.spark.jars

demo: install ## the whole thing on this machine: broker, events, pipeline, tables, summary
	$(VENV)/bin/penstock demo $(ARGS)

# Workers take files from one queue, longest first, and each starts the servers that its tests need. ARGS="-n 0" for none.
# More workers than cores: a test with a broker spends half of its time waiting.
TEST_WORKERS := $(or $(PENSTOCK_TEST_WORKERS),4)
test: install ## the tests, but not those that take minutes each; ARGS=... for pytest
	$(PYTEST) -n $(TEST_WORKERS) -o faulthandler_timeout=300 -m "not long" $(ARGS)

# These wait for nothing, and every worker collects them all: one worker for each of two cores.
QUICK_WORKERS := $(or $(PENSTOCK_TEST_WORKERS),2)
QUICK = $(addprefix tests/,cli contract hostile lanes model unit)
test-quick: install ## the short tests that need neither Java nor a server; ARGS=... for pytest
	$(PYTEST) -n $(QUICK_WORKERS) -m "not services and not long" --shorter-than 0.1 $(QUICK) $(ARGS)

long: install ## the tests that take minutes each and are not of `make crash`; ARGS=... for pytest
	$(PYTEST) -n $(TEST_WORKERS) -m "long and not crash" $(ARGS)

# The checks run side by side; each prints what it has to say at its end, where this make can do that.
lint: install ## format, lint, types, import contracts, and known vulnerabilities of what is locked
	@$(MAKE) --no-print-directory -j$(words $(CHECKS)) $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) $(CHECKS)

check-types:
	$(VENV)/bin/mypy
check-imports:
	$(VENV)/bin/lint-imports --no-logo
check-lock:
	$(PYTHON_IN) tools/audit_lock.py
check-format:
	$(VENV)/bin/ruff format --check .
check-style:
	$(VENV)/bin/ruff check .

bench: install ## against the job as a blog would write it; into bench/results
	$(PYTHON_IN) bench/run.py $(ARGS)

crash: install ## the exactly-once proof: kill things again and again, then count; the figures go into docs/guarantees.md
	PENSTOCK_CRASH_TABLE=docs/guarantees.md $(PYTEST) -n $(TEST_WORKERS) -m crash tests/crash tests/hosts tests/operators $(ARGS)

soak: install ## all sinks under load and random faults for MINUTES=30, ARGS="--seed N --out DIR"; a report at the end
	$(PYTHON_IN) -m tests.soak.run --minutes $(or $(MINUTES),30) $(ARGS)

lock: $(VENV)/.made ## write requirements.lock anew from pyproject.toml
	$(UV) pip compile --python $(PYTHON_IN) --universal --python-version 3.11 --generate-hashes --upgrade \
		--no-emit-index-url --no-header --no-annotate pyproject.toml --group dev -o requirements.lock

wheel: $(VENV)/.made ## a wheel in dist/
	$(UV) build --python $(PYTHON_IN) --wheel --out-dir dist

clean: ## remove what was made here; the jars in the cache folder stay
	rm -rf $(VENV) dist build soak-report .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -exec rm -rf {} +

# A stamp is written last: a step that was cut short is done again from its beginning.
$(VENV)/.made:
	@python=$$($(FIND_PYTHON)); \
	if [ -z "$$python" ]; then \
		echo "Penstock needs Python 3.11 or newer."; \
		echo "  found: $$(python3 --version 2>&1 || echo no python3)"; \
		echo "  install one, or name it: make install PYTHON=/path/to/python3.11"; \
		exit 3; \
	fi; \
	echo "making $(VENV) with $$($$python --version)"; \
	"$$python" -m venv $(VENV) || { \
		echo "This Python cannot make an environment: its venv module is a package of its own on some systems."; \
		echo "  install it (Debian, Ubuntu: python3-venv), or name another Python: make install PYTHON=..."; \
		exit 3; \
	}
	@$(PYTHON_IN) -m pip install --quiet --disable-pip-version-check --target $(VENV)/uv uv==$(UV_VERSION)
	@touch $@

$(VENV)/.packages: $(VENV)/.made requirements.lock
	$(UV) pip sync --quiet --python $(PYTHON_IN) --require-hashes --compile-bytecode requirements.lock
	@touch $@

$(VENV)/.installed: $(VENV)/.packages pyproject.toml
	$(UV) pip install --quiet --python $(PYTHON_IN) --no-deps --editable .
	@touch $@

# Compiled here, since PYTHONDONTWRITEBYTECODE is set on many machines and every start would compile again.
$(VENV)/.compiled: $(VENV)/.installed $(SOURCES)
	@$(PYTHON_IN) -m compileall -q src
	@touch $@

.PHONY: docs
docs: install ## write docs/reference anew from the code
	$(PYTHON_IN) docs/reference.py
