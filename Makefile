# Everything lands in .venv at the root of the checkout; nothing global is touched.
#   make demo    a real job on real local services        make test    pure, Spark and smoke tests
PYTHON ?= python3
VENV := .venv
PACKAGES := $(VENV)/.packages
SELF := $(VENV)/.self
# Tests wait for processes more than they compute: three of their own keep two cores busy. tests/conftest.py says which
# tests stay together, and starts with those that take longest.
PYTEST := $(VENV)/bin/pytest --numprocesses 3 --dist loadgroup --no-loadscope-reorder
FIRST := not prove and not slow and (not system or smoke)
REST := not prove and (slow or (system and not smoke))

.DEFAULT_GOAL := help
.PHONY: help demo example test test-rest test-all prove-all coverage check venv jars lock clean preflight sbom audit

help:
	@echo "make demo       start local services and run the demonstration"
	@echo "make example    run an example: make example NAME=smoke_alarm; without NAME, list them"
	@echo "make test       pure and Spark tests, and a smoke ring on real services; 5 to 9 minutes on two cores"
	@echo "make test-all   the same and all other tests; 45 to 70 minutes  (make test-rest: only those others)"
	@echo "make prove-all  200 kills and more, and ten minutes of fuzzing; over an hour; the table goes to .lockgate/prove-all.json"
	@echo "make coverage   branch coverage of the pure and Spark tests"
	@echo "make check      format, lint, strict types, names that tests use, English, make test"
	@echo "make venv       only the virtual environment      (PYTHON=python3.12 to choose the interpreter)"
	@echo "make jars       only the Kafka connector and broker, HDFS, and what makes Java start quickly"
	@echo "make lock       choose the versions of requirements.lock again (needs uv)"
	@echo "make sbom       the bill of materials, with licences and hashes, as CycloneDX: sbom.cdx.json"
	@echo "make audit      ask OSV for known vulnerabilities of what is locked; 3 if nothing could be audited"
	@echo "make clean      stop the local services; remove .venv and caches (data in .lockgate stays)"

demo: venv
	@$(VENV)/bin/lockgate jars >/dev/null
	$(VENV)/bin/lockgate demo

# Some shells export a NAME of their own, which is no wish for an example.
example: venv
ifeq ($(origin NAME),command line)
	$(VENV)/bin/lockgate examples run "$(NAME)"
else
	@$(VENV)/bin/lockgate examples list
	@echo
	@echo "Run one: make example NAME=smoke_alarm"
endif

test: venv jars
	$(PYTEST) -m "$(FIRST)"

test-rest: venv jars
	$(PYTEST) -m "$(REST)"

test-all: test test-rest

prove-all: venv jars
	$(VENV)/bin/pytest -m prove

coverage: venv jars
	$(PYTEST) -m "not prove and not system" --cov --cov-branch --cov-report=term:skip-covered

check: venv jars
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy --strict
	$(VENV)/bin/mypy --config-file tests/mypy.ini tests
	$(VENV)/bin/python scripts/prose.py
	$(PYTEST) -m "$(FIRST)"

jars: venv
	@$(VENV)/bin/lockgate jars --hdfs >/dev/null

venv: preflight $(SELF)

preflight:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "There is no '$(PYTHON)' on this machine." >&2; \
	  echo "  where: PATH" >&2; \
	  echo "  fix:   install Python 3.11 or newer, or name one that is there: make PYTHON=python3.12 ..." >&2; \
	  exit 2; }
	@$(PYTHON) scripts/preflight.py

# A virtual environment holds the path it was made at: a checkout that was moved or copied needs a new one.
ifneq ($(shell cat $(PACKAGES) 2>/dev/null),$(CURDIR))
.PHONY: $(PACKAGES)
endif

# The build tools come first, out of the same lock: so packages that have to be built on this machine
# are built by pinned tools too, and this checkout can be installed without a network.
$(PACKAGES): requirements.lock
	@echo "making $(VENV) (once, some minutes: PySpark alone is over 400 MB)" >&2
	@$(PYTHON) -m venv --clear $(VENV)
	@sed -n -E '/^(packaging|setuptools|wheel)==/,/# via/p' requirements.lock > $(VENV)/build.lock
	@$(VENV)/bin/pip install --quiet --require-hashes -r $(VENV)/build.lock
	@$(VENV)/bin/pip install --quiet --require-hashes --no-build-isolation -r requirements.lock
	@echo "$(CURDIR)" > $(PACKAGES)

$(SELF): $(PACKAGES) pyproject.toml
	@$(VENV)/bin/pip install --quiet --no-build-isolation --no-deps --no-index -e .
	@touch $(SELF)

sbom: venv
	$(VENV)/bin/python scripts/sbom.py > sbom.cdx.json

audit: venv
	@$(VENV)/bin/python scripts/audit.py

lock:
	uv pip compile --universal --python-version 3.11 --all-extras --generate-hashes --no-emit-index-url \
	  --custom-compile-command "make lock" pyproject.toml --output-file requirements.lock

# What jobs keep in .lockgate (checkpoints, services) is data, and stays.
clean:
	@if [ -x $(VENV)/bin/lockgate ]; then $(VENV)/bin/lockgate down; fi
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
