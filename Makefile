# Two commands do it all: `make demo` shows what scrapy-bloom does, `make test` tests it.
# Both make a virtual environment first; nothing else needs to be installed.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

# The oldest versions that pyproject.toml promises to work with.
# Twisted: Scrapy 2.13 itself does not start with the newest.
LOWEST = "scrapy==2.13.0" "redis==6.4.0" "mmh3==5.0.0" "scrapy-redis==0.9.1" "twisted<25.6"

# The third of the tests that runs with them (TESTS chooses others): what talks to Scrapy, scrapy-redis, redis-py, mmh3
# or a server. The others (values, races, error rates, commands, pages, simulated crawls, chaos) would find the same again.
tests-of = $(foreach name,$(2),tests/$(1)/test_$(name).py)
# Scrapy's interfaces and requests, and mmh3.
LOWEST_TESTS = $(call tests-of,unit,addon engine_hooks identity hashing outputs request_codec)
# Scripts on the oldest servers.
LOWEST_TESTS += $(call tests-of,server,claim_protocol filter rotation)
# Connections: clients, asyncio, TLS, clusters, Sentinel, replicas.
LOWEST_TESTS += $(call tests-of,server,async_filter client cluster cluster_driver concurrency)
LOWEST_TESTS += $(call tests-of,server,connection replication sentinels time_outs tls)
# Crawls by Scrapy's scheduler and by scrapy-redis's.
LOWEST_TESTS += $(call tests-of,crawl,crawl crawled crawled_queues interrupted_crawls)
LOWEST_TESTS += $(call tests-of,crawl,cluster_outages dupefilter failover one_loop opening outages replicas)
# Crawls by what they read of Scrapy: items, feeds, outputs, errors, commands, plug-ins.
LOWEST_TESTS += $(call tests-of,crawl,delivery failed_pages item_errors items outputs_crawl)
LOWEST_TESTS += $(call tests-of,crawl,developer_commands other_plugins)

# Tests wait for servers and crawls a third of the time. Each process has servers of its own.
PARALLEL ?= --numprocesses 4 --dist worksteal

.PHONY: help demo test test-fast test-all test-lowest chaos simulate mutants upstream lint lint-lua format docs reference dist bench bench-full clean

help:
	@echo "make demo         crawl a small site month by month, on a server and a clock of its own"
	@echo "make test         run the tests (6 minutes): scripts on each server installed, the rest on one"
	@echo "make test-fast    run the tests that need no server (30 seconds)"
	@echo "make test-all     run the tests with all combinations and examples, and measure coverage"
	@echo "make chaos        hundreds of crawls with faults at random moments (hours; CHAOS=options)"
	@echo "make simulate     2,000 crawls by Scrapy's engine whose steps a seed chooses (10 minutes; SIMULATE=options)"
	@echo "make mutants      which of these crawls find bugs that are put in on purpose (15 minutes; MUTANTS=options)"
	@echo "make upstream     run the tests of Scrapy and scrapy-redis with this dupefilter (UPSTREAM=options)"
	@echo "make lint         ruff, mypy, codespell and luacheck"
	@echo "make docs         build the documentation's site in docs/_build, and check its links"
	@echo "make reference    write the pages of docs/reference that come from the code"
	@echo "make dist         build the wheel and the sdist, and try them out in empty environments (PYTHONS=interpreters)"
	@echo "make bench        run the benchmarks (15 minutes) and write docs/performance.md"
	@echo "make bench-full   the same with 100 million URLs and the slowest peers (2 hours, 2 GB of memory)"
	@echo "make test-lowest  run a third of the tests with the oldest supported versions"

demo: $(VENV)/demo
	@cd example_project && ../$(BIN)/python demo.py

# For example TESTS="tests/unit -k ring"
test: $(VENV)/dev
	$(BIN)/python -m pytest $(PARALLEL) $(TESTS)

test-fast: $(VENV)/dev
	$(BIN)/python -m pytest $(PARALLEL) --hypothesis-profile=fast tests/unit

# For example PROFILE=nightly
test-all: $(VENV)/dev
	KILL_STRIDE=4 $(BIN)/python -m pytest $(PARALLEL) -m "" --hypothesis-profile=$(or $(PROFILE),all) \
		--cov --cov-report=term $(TESTS)

test-lowest: $(VENV)-lowest/dev
	$(VENV)-lowest/bin/python -m pytest $(PARALLEL) $(or $(TESTS),$(LOWEST_TESTS))

# For example CHAOS="--kinds reset,mixed --schedules 10", CHAOS="--stand cluster", or "--stand sentinel"
chaos: $(VENV)/dev
	KILL_STRIDE=1 $(BIN)/python -m pytest tests/crawl/test_crawl_kills.py
	cd tests && ../$(BIN)/python -m chaos.run $(CHAOS)

# For example SIMULATE="--kind faults --first 914 --runs 1"; --note adds runs that fail to tests/simulation/failing.txt
simulate: $(VENV)/dev
	cd tests && PYTHONHASHSEED=0 ../$(BIN)/python -m simulation $(SIMULATE)

# For example MUTANTS="--only cache"
mutants: $(VENV)/dev
	cd tests && PYTHONHASHSEED=0 ../$(BIN)/python -m simulation.mutants $(MUTANTS)

# For example UPSTREAM="--scrapy 2.19.0 --remember scheduled", or "--scrapy master"
upstream: $(VENV)/dev
	$(BIN)/python -m tools.upstream $(UPSTREAM)

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	$(MAKE) --no-print-directory lint-lua

# luacheck is no Python package: apt-get install lua-check, brew install luacheck.
lint-lua:
	@if [ -n "$$CI" ] || command -v luacheck >/dev/null; \
	then luacheck --quiet --no-color scrapy_bloom; \
	else echo "luacheck is not installed: the Lua scripts are not checked"; fi

format: $(VENV)/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Any warning fails: a link that leads nowhere, a page that nothing lists. All pages are read each time,
# because Sphinx does not repeat the warnings of pages that have not changed.
docs: $(VENV)/docs
	$(BIN)/python -m sphinx -W --keep-going --quiet --fresh-env --write-all -b html docs docs/_build
	@echo "The site is in docs/_build/index.html"

reference: $(VENV)/dev
	$(BIN)/python -m tools.reference

# For example PYTHONS="python3.11 python3.14": what the wheel is tried out with, the lowest version first
dist: $(VENV)/dist
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist
	$(BIN)/python tools/check_dist.py dist $(if $(PYTHONS),--pythons $(PYTHONS)) --lowest $(LOWEST)

bench: $(VENV)/bench
	$(BIN)/python -m benchmarks

bench-full: $(VENV)/bench
	$(BIN)/python -m benchmarks --full

clean:
	rm -rf $(VENV) $(VENV)-lowest dist docs/_build .*_cache .coverage .hypothesis

$(BIN)/python:
	@echo "Making a virtual environment in $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

$(VENV)/demo: $(BIN)/python pyproject.toml
	@echo "Installing scrapy-bloom, Scrapy and an embedded Valkey server (a minute) ..."
	@$(PIP) -e ".[demo]"
	@touch $@

$(VENV)/dev: $(BIN)/python pyproject.toml
	@echo "Installing scrapy-bloom and what its tests need (a minute or two) ..."
	@$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/docs: $(BIN)/python pyproject.toml
	@echo "Installing Sphinx ..."
	@$(PIP) -e ".[docs]"
	@touch $@

$(VENV)/dist: $(BIN)/python pyproject.toml
	@echo "Installing what builds and checks the packages ..."
	@$(PIP) -e ".[dist]"
	@touch $@

$(VENV)/bench: $(VENV)/dev
	@$(PIP) -e ".[bench]"
	@touch $@

$(VENV)-lowest/dev: pyproject.toml
	@$(PYTHON) -m venv $(VENV)-lowest
	@$(VENV)-lowest/bin/python -m pip install --quiet --disable-pip-version-check -e ".[dev]" $(LOWEST)
	@touch $@
