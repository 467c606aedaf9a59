PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/installed
EXTRAS ?=
# One for each set of extras: `make install EXTRAS=postgres` adds to what is there
SERVER := $(VENV)/installed-server$(if $(EXTRAS),-$(EXTRAS))
# A bundle's wheels are used without an index, and without the settings of pip that this user may have
PIP    := $(BIN)/pip $(if $(wildcard wheels/*.whl),--isolated) --quiet --disable-pip-version-check
INSTALL = $(PIP) install $(if $(wildcard wheels/*.whl),--no-index --find-links wheels) --constraint constraints.txt
# A folder with torchvision, where the installed torch has none: some families need it
VISION  := $(BIN)/python -m tests.support.vision .nightly/torchvision
# A worker takes all tests of a server of the session, or of a file: tests/conftest.py
PYTEST  := $(BIN)/pytest --numprocesses 2 --durations 25 --durations-min 2
CLIENTS := .venv-clients/installed
SUPPLY  := .venv-supply/installed

.PHONY: help near docs reference screenshots setup install serve bundle wheel verify install-offline prove-offline test nightly nightly-turn families chat-families clients conformance check lint types quick format bench bench-chat real-chat gpu soak chaos fuzz load audit sbom memory clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup: $(STAMP) ## create .venv and install everything, if anything changed

define make_venv
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Darkroom needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@rm -rf darkroom.egg-info  # of a wheel that was built here: it would tell that one's version
	@echo "Setting up $(VENV) (first time: some minutes) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
endef

$(STAMP): pyproject.toml constraints.txt
	$(make_venv)
	@$(INSTALL) --editable '.[dev]'
	@touch $@

install: $(SERVER) ## create .venv with what the server needs, without tools for development; EXTRAS=vision,postgres for more

$(SERVER): pyproject.toml constraints.txt
	$(make_venv)
	@$(INSTALL) --editable '.$(if $(EXTRAS),[$(EXTRAS)])'
	@touch $@

serve: $(if $(wildcard $(STAMP)),$(STAMP),$(SERVER)) ## run the server with the starter checkpoints
	@$(BIN)/darkroom serve

bundle: $(SUPPLY) ## one archive for a machine without a network, in build/; OPTIONS='--python 3.12 --torch cpu', docs/guides/offline.md
	@.venv-supply/bin/python -m release.bundle $(OPTIONS)

wheel: $(STAMP) docs ## one file in dist/ that pip, pipx and uv install, with the starters in it
	@$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
	@ls dist/*.whl

verify: ## in an unpacked bundle: is every file as it was bundled, and does it suit this machine?
	@$(PYTHON) -m release.verify

install-offline: verify ## in an unpacked bundle: verify it, and install it from its own wheels
	@$(MAKE) --no-print-directory install

prove-offline: $(if $(wildcard $(STAMP)),$(STAMP),$(SERVER)) ## start, draw and chat in a network namespace without a route; shows that nothing tried to leave
	@unshare --map-root-user --net -- $(BIN)/python -m release.prove_offline

test: $(STAMP) lint ## every test but the nightly ones, real server and SDK included: ten minutes on two cores
	@$(MAKE) --no-print-directory --jobs 2 types clients
	@$(MAKE) --no-print-directory $(SUPPLY) || echo "The site of docs/ is not tested: pip could not install mkdocs"
	@$(PYTEST) tests

nightly-turn: $(STAMP) ## a quarter of an hour of the nightly tests, other ones at each commit
	@PYTHONPATH=$$($(VISION)) $(PYTEST) tests -m nightly --minutes 15 --turn $$(git rev-list --count HEAD || echo 0)

nightly: $(STAMP) ## slow tests, faults with real workers, and every family of checkpoints on the oldest and the newest diffusers that pyproject.toml allows
	@PYTHONPATH=$$($(VISION)) $(PYTEST) tests -m nightly --turn $$(git rev-list --count HEAD || echo 0) --ignore tests/engines/test_families.py
	@WORKERS=real $(PYTEST) $$(grep --files-with-matches PLAIN tests/e2e/test_*.py) -m 'not nightly'
	@for wanted in '==0.38.0' ''; do \
		folder=.nightly/diffusers$$wanted; \
		$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $$folder "diffusers$$wanted"; \
		echo "diffusers $$(PYTHONPATH=$$folder $(BIN)/python -c 'import diffusers; print(diffusers.__version__)')"; \
		PYTHONPATH=$$folder:$$($(VISION)) $(BIN)/pytest tests/engines/test_families.py tests/engines/test_single_files.py \
			tests/engines/test_image_sizes.py tests/engines/test_pipelines.py tests/engines/test_controls.py \
			tests/engines/test_late_start.py tests/unit/families/test_census.py -m 'nightly or not nightly' || exit 1; \
	done

families: $(STAMP) ## drive every family of tiny checkpoints over HTTP, and write the table of docs/reference/families.md
	@PYTHONPATH=$$($(VISION)) $(BIN)/python -m benchmarks.families

chat-families: $(STAMP) ## drive every family of tiny chat checkpoints over HTTP, and write the table of docs/reference/chat-families.md
	@PYTHONPATH=$$($(VISION)) $(BIN)/python -m benchmarks.chat_families

clients: $(CLIENTS) ## install what some tests drive: LiteLLM, LangChain, OpenAI's Node SDK, a Chromium

$(CLIENTS): tests/clients/constraints.txt tests/clients/requirements.txt tests/node/package-lock.json
	@test -x .venv-clients/bin/python || $(PYTHON) -m venv .venv-clients
	@.venv-clients/bin/pip install --quiet --disable-pip-version-check --constraint tests/clients/constraints.txt \
		--requirement tests/clients/requirements.txt && touch $@ || echo "LiteLLM and LangChain are not tested: pip could not install them"
	@npm ci --prefix tests/node --no-audit --no-fund --silent || echo "OpenAI's Node SDK and the console are not tested: npm could not install the SDK and the browser"

conformance: $(STAMP) $(CLIENTS) ## SDKs and suites of others against one server: the tables of docs/reference/conformance.md; SUITES=folder with their copies
	@$(BIN)/python -m benchmarks.conformance $(if $(SUITES),--suites $(SUITES))

check: $(STAMP) lint ## lint, import rules, types, the quick unit tests: under two minutes
	@$(MAKE) --no-print-directory --jobs 2 types quick

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports

types: $(STAMP)
	@$(BIN)/mypy

quick: $(STAMP)
	@$(PYTEST) tests/unit -m 'not nightly and not slow'

near: $(STAMP) ## the test files nearest to what you have changed, best first; FILES='a.py b.js' for other files
	@$(BIN)/python -m tests.support.near $(FILES)

format: $(STAMP) ## rewrite the code in the house format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(STAMP) ## server against the bare pipeline, many calls against one, swaps: as ratios, with a plot; BASE=commit compares with that commit
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[bench]'
	@$(BIN)/python -m benchmarks $(if $(BASE),--base $(BASE))

bench-chat: $(STAMP) ## chat throughput against transformers serve and bare generate, as ratios
	@$(BIN)/python -m benchmarks.chat

real-chat: $(STAMP) ## trained weights and published tokenizers out of packages: right answers, schemas, moderation; skipped by name where a package can't be had
	@$(PYTEST) -m nightly tests/real

gpu: $(if $(and $(wildcard wheels/*.whl),$(if $(wildcard $(STAMP)),,bundle)),$(SERVER),$(STAMP)) ## on a machine with a GPU: its tests, then, even if some fail, its speed by random weights (PART=merged for one part alone)
	@failed=0; $(if $(PART),,if test -x $(BIN)/pytest; then \
		TORCH_CUDA_SANITIZER=1 $(BIN)/pytest --numprocesses 4 tests/gpu/test_turns.py tests/gpu/test_runtime_options.py || failed=1; \
		$(BIN)/pytest --numprocesses 4 tests/gpu || failed=1; \
		else echo "Not run: tests/gpu, as pytest is not installed."; fi;) $(BIN)/python -m benchmarks.gpu $(PART) || failed=1; exit $$failed

soak: $(STAMP) ## half an hour of mixed traffic, killed workers and swaps; MINUTES=5 for less
	@$(BIN)/python -m benchmarks.soak $(or $(MINUTES),30)

chaos: $(STAMP) ## kills of all processes under traffic, then a recount of the charges; KILLS=100 for fewer than 1,000, WORKERS=real
	@$(BIN)/python -m benchmarks.chaos $(or $(KILLS),1000) $(or $(WORKERS),plain)

fuzz: $(STAMP) ## mutated requests to every route; REQUESTS=1000 for fewer than 10,000
	@$(BIN)/python -m benchmarks.fuzz $(or $(REQUESTS),10000)

load: $(STAMP) ## 200 chats and 50 image calls at once: latency of others, fairness, memory
	@$(BIN)/python -m benchmarks.load 200 50

audit: $(STAMP) $(SUPPLY) ## known vulnerabilities of the pinned packages; DATABASE=all.zip for OSV's export of PyPI
	@$(BIN)/python -m release.audit $(DATABASE)

sbom: $(STAMP) $(SUPPLY) ## the packages of .venv as CycloneDX, in build/sbom.json
	@mkdir -p build
	@.venv-supply/bin/cyclonedx-py environment $(BIN)/python --pyproject pyproject.toml --output-format JSON -o build/sbom.json
	@echo "Written: build/sbom.json"

$(SUPPLY): release/tools.txt
	@test -x .venv-supply/bin/python || $(PYTHON) -m venv .venv-supply
	@.venv-supply/bin/pip install --quiet --disable-pip-version-check --requirement release/tools.txt && touch $@

screenshots: $(STAMP) $(CLIENTS) ## the pictures of docs/guides/console.md, by the console's browser tests
	@mkdir -p docs/guides/console
	@CONSOLE_SCREENSHOTS=docs/guides/console $(BIN)/pytest tests/e2e/test_console.py -m 'nightly or not nightly'

docs: $(SUPPLY) ## build the site of docs/ into server/site, which the server shows at /docs
	@NO_MKDOCS_2_WARNING=1 .venv-supply/bin/python -m mkdocs build --quiet --clean

reference: $(STAMP) ## write the pages of docs/reference/ that the code says: settings, catalog keys, commands
	@$(BIN)/python -m release.reference

memory: $(STAMP) ## peak memory of 1K, 2K and 4K pictures
	@$(BIN)/python -m benchmarks.memory

clean: ## remove the environment and caches, keep results and keys
	rm -rf $(VENV) .nightly .venv-clients .venv-supply tests/node/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache *.egg-info
