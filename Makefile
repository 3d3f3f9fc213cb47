# Two commands do it all: `make demo` shows what scrapy-bloom does, `make test` tests it.
# Both make a virtual environment first; nothing else needs to be installed.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
# The oldest versions that pyproject.toml promises to work with. (Scrapy 2.13 doesn't start with the newest Twisted.)
LOWEST = "scrapy==2.13.0" "redis==6.4.0" "mmh3==5.0.0" "scrapy-redis==0.9.1" "twisted<25.6"
# Between the oldest and the newest: Scrapy's engine and its feeds have changed since 2.13, and again since 2.16.
SCRAPY ?= 2.16
# What depends on Scrapy's engine, its feeds, and how it reads start requests and outputs.
ENGINE = $(patsubst %,tests/crawl/test_%.py,async_callbacks as_plain cut_feeds delivery items opening outputs start_lists) \
	tests/unit/test_engine_hooks.py
# Each process has its own servers. It waits for them and for crawls a third of the time.
PYTEST = $(BIN)/python -m pytest --numprocesses 4 --dist worksteal
GROUPS = demo dev docs dist bench

.PHONY: help demo test test-all test-lowest test-scrapy neighbours chaos simulate mutants upstream lint format docs reference terminal dist bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/demo ## crawl a small site month by month, on a server and a clock of its own (half a minute)
	@cd example_project && ../$(BIN)/python demo.py
test: $(VENV)/dev ## run the tests (5 minutes; TESTS="tests/server -k rotation" runs some)
	$(PYTEST) $(TESTS)
test-all: $(VENV)/dev ## run all combinations and examples, and measure coverage (PROFILE=nightly for other examples)
	$(PYTEST) -m "" --hypothesis-profile=$(or $(PROFILE),all) --cov --cov-report=term $(TESTS)
test-lowest: ## run what talks to servers and to Scrapy with the oldest supported versions (TESTS chooses others)
	$(MAKE) test VENV=$(VENV)-lowest PINS='$(LOWEST)' TESTS='$(or $(TESTS),tests/server tests/crawl)'
test-scrapy: ## run what depends on Scrapy's engine and feeds with Scrapy 2.16 (SCRAPY and TESTS choose others)
	$(MAKE) test VENV=$(VENV)-scrapy-$(SCRAPY) PINS='"scrapy==$(SCRAPY).*"' TESTS='$(or $(TESTS),$(ENGINE))'
# scrapyd needs an old setuptools.
neighbours: ## crawl beside other plug-ins of Scrapy (`make test` has some of them)
	$(MAKE) test VENV=$(VENV)-neighbours PINS='--group neighbours' TESTS='tests/crawl/test_other_plugins.py'
chaos: $(VENV)/dev ## crawls with kills, outages and failovers at random moments (20 minutes; CHAOS=options)
	cd tests && ../$(BIN)/python -m chaos $(CHAOS)
simulate: $(VENV)/dev ## crawls by Scrapy's engine whose steps a seed chooses (SIMULATE=options)
	cd tests && PYTHONHASHSEED=0 ../$(BIN)/python -m simulation $(SIMULATE)
mutants: $(VENV)/dev ## which tests find mistakes that are put in on purpose (MUTANTS="--today 10", or other options)
	cd tests && ../$(BIN)/python -m mutants $(MUTANTS)
upstream: $(VENV)/dev ## run the tests of Scrapy and scrapy-redis with this dupefilter (UPSTREAM=options)
	$(BIN)/python -m tools.upstream $(UPSTREAM)
lint: $(VENV)/dev ## ruff, mypy, codespell, and luacheck (apt-get install lua-check, brew install luacheck)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/codespell
	@if [ -n "$$CI" ] || command -v luacheck >/dev/null; then luacheck --quiet --no-color scrapy_bloom; \
	else echo "luacheck is not installed: the Lua scripts are not checked"; fi
format: $(VENV)/dev ## correct what ruff can correct
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
# All pages are read each time, because Sphinx doesn't repeat the warnings of pages that haven't changed.
docs: $(VENV)/docs ## build the documentation's site in docs/_build, where any warning fails
	$(BIN)/python -m sphinx -W --keep-going --quiet --fresh-env --write-all -b html docs docs/_build
reference: $(VENV)/dev ## write the pages of docs/reference that come from the code
	$(BIN)/python -m tools.reference
terminal: $(VENV)/dev ## record docs/terminal.svg, a terminal in which a crawl is killed
	$(BIN)/python -m tools.terminal
dist: $(VENV)/dist ## build the packages, and try them out in empty environments (PYTHONS=interpreters, lowest first)
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist
	$(BIN)/python tools/check_dist.py dist $(if $(PYTHONS),--pythons $(PYTHONS)) --lowest $(LOWEST)
bench: $(VENV)/bench ## run the benchmarks (12 minutes), and write docs/performance.md (BENCH=options)
	$(BIN)/python -m benchmarks $(BENCH)
clean: ## remove what the other targets have made
	rm -rf $(VENV) $(VENV)-lowest $(VENV)-scrapy-* $(VENV)-neighbours build dist docs/_build .*_cache .coverage .hypothesis

# Groups of dependencies need pip 25.1.
$(GROUPS:%=$(VENV)/%): $(VENV)/%: pyproject.toml
	@echo "Installing what the group \"$*\" needs into $(VENV) (a minute or two) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "pip>=25.1"
	@$(BIN)/python -m pip install --quiet -e ".[embedded,fast,scrapy-redis]" --group $* $(PINS)
	@touch $@
