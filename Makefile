# What a developer and the checks run. `make` lists the targets; README.md starts with two of them.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

WORK := $(abspath $(or $(OVERMIND_WORK),.work))
export OVERMIND_WORK := $(WORK)

VENV := .venv
PY := $(VENV)/bin/python
VENVS := $(or $(OVERMIND_VENVS),$(HOME)/.cache/overmind-fs/venvs)
OLDER := $(VENVS)/older
OLDER_PYTHON := 3.11
PREFIX ?= /usr/local
# The manual page, and how shells complete a line.
SHARED = $(addprefix $(DESTDIR)$(PREFIX)/share/,man/man1/overmind-fs.1 bash-completion/completions/overmind-fs \
	zsh/site-functions/_overmind-fs fish/vendor_completions.d/overmind-fs.fish)
CASES ?= ../shared/cases
CASES_ARGS ?=
FUZZTIME ?= 20s
BENCH_ARGS ?=
WAYS_ARGS ?=
GPU_ARGS ?=
GOLANGCI := 2.15.0
# That of the loader, and the commit.
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyloader/pyproject.toml)$(shell git rev-parse --short=12 HEAD \
	2>/dev/null | sed 's/^/+g/')

GO_SOURCES := $(shell find cmd fs schema -name '*.go' -o -path '*/completion/*' -type f 2>/dev/null)
CEXT_SOURCES := $(shell find cext/src cext/overmind_cext cext/setup.py cext/pyproject.toml -type f -not -name '*.so' \
	-not -path '*__pycache__*' 2>/dev/null)

# An interpreter of a version that works and is new enough; pyenv has names on PATH that do not run.
PYTHON ?= $(shell for v in python3.11 python3.12 python3.10 python3.13 python3; do \
	$$v -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo $$v; break; }; done)
UV = $(shell command -v uv || ls $(WORK)/uv/bin/uv 2>/dev/null)

##@ Use

.PHONY: help
help: ## this list
	@awk 'BEGIN { FS = ":.*## " } /^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: build venv compiled ## one pipeline in three processes: without the cache, first load, second load
	$(PY) -m integration.demo

.PHONY: install
install: build ## the daemon, its manual and completions to PREFIX, the loader into the active Python environment
	install -D -m 755 bin/overmind-fs $(DESTDIR)$(PREFIX)/bin/overmind-fs
	install -d $(dir $(SHARED))
	bin/overmind-fs man >$(word 1,$(SHARED))
	bin/overmind-fs completion bash >$(word 2,$(SHARED))
	bin/overmind-fs completion zsh >$(word 3,$(SHARED))
	bin/overmind-fs completion fish >$(word 4,$(SHARED))
	@if [ -n "$${VIRTUAL_ENV:-}" ] && command -v uv >/dev/null; then \
		set -x; uv pip install --reinstall-package overmind-fs --reinstall-package overmind-cext ./cext ./pyloader; \
	else \
		set -x; python3 -m pip install ./cext ./pyloader; \
	fi

.PHONY: uninstall
uninstall: ## what install put there
	rm -f $(DESTDIR)$(PREFIX)/bin/overmind-fs $(SHARED)
	@if [ -n "$${VIRTUAL_ENV:-}" ] && command -v uv >/dev/null; then \
		set -x; uv pip uninstall overmind-fs overmind-cext; \
	else \
		set -x; python3 -m pip uninstall --yes overmind-fs overmind-cext; \
	fi

##@ Build

.PHONY: build
build: bin/overmind-fs ## the daemon, bin/overmind-fs

bin/overmind-fs: $(GO_SOURCES) go.mod go.sum | need-go
	CGO_ENABLED=0 go build -trimpath -ldflags '-X main.version=$(VERSION)' -o $@ ./cmd/overmind-fs

.PHONY: venv
venv: $(VENV)/.requirements $(VENV)/.cext $(VENV)/.pyloader ## .venv with everything that the tests load, and the product

$(PY): | need-python need-uv
	test -x $@ || $(UV) venv --quiet --python $(PYTHON) $(VENV)

$(VENV)/.requirements: integration/requirements.txt | $(PY) need-uv
	@echo 'installing Python packages (some gigabytes when they are not in the cache of uv)'
	$(UV) pip install --quiet --compile-bytecode --python $(PY) -r $<
	@touch $@

$(VENV)/.cext: $(CEXT_SOURCES) $(VENV)/.requirements | need-compiler
	$(UV) pip install --quiet --python $(PY) --no-deps --no-build-isolation --reinstall-package overmind-cext ./cext
	@touch $@

$(VENV)/.pyloader: pyloader/pyproject.toml $(VENV)/.requirements
	$(UV) pip install --quiet --python $(PY) --no-deps --no-build-isolation --reinstall-package overmind-fs -e ./pyloader
	@touch $@

.PHONY: venv-older
venv-older: $(OLDER)/.product ## an environment with older libraries, in $OVERMIND_VENVS

$(OLDER)/bin/python: | need-uv
	test -x $@ || $(UV) venv --quiet --python $(OLDER_PYTHON) $(OLDER)

$(OLDER)/.requirements: integration/requirements-older.txt | $(OLDER)/bin/python need-uv
	@echo 'installing older Python packages (some gigabytes when they are not in the cache of uv)'
	$(UV) pip install --quiet --compile-bytecode --python $(OLDER)/bin/python -r $<
	@touch $@

# All checkouts share this environment, and the product in it is that of the checkout that the stamp names.
$(OLDER)/.product: $(CEXT_SOURCES) pyloader/pyproject.toml $(OLDER)/.requirements \
	$(if $(filter $(CURDIR),$(shell cat $(OLDER)/.product 2>/dev/null)),,always) | need-compiler
	$(UV) pip install --quiet --python $(OLDER)/bin/python --no-deps --no-build-isolation \
		--reinstall-package overmind-cext --reinstall-package overmind-fs ./cext -e ./pyloader
	@echo '$(CURDIR)' >$@

.PHONY: bench-env
bench-env: venv venv-older $(VENVS)/overmind-cache/.requirements $(VENVS)/bench/.requirements ## for the benchmark

$(VENVS)/overmind-cache/bin/python $(VENVS)/bench/bin/python: | need-uv
	test -x $@ || $(UV) venv --quiet --python $(OLDER_PYTHON) $(@D)/..

# Built without isolation: its extension works with the torch that it was compiled for, and with no other.
$(VENVS)/overmind-cache/.requirements: integration/requirements-older.txt integration/bench/requirements-overmind-cache.txt \
	| $(VENVS)/overmind-cache/bin/python need-uv need-compiler
	$(UV) pip install --quiet --compile-bytecode --python $(@D)/bin/python -r $< \
		$(shell grep -E '^setuptools-scm' integration/bench/requirements-overmind-cache.txt)
	$(UV) pip install --quiet --compile-bytecode --python $(@D)/bin/python --no-build-isolation \
		-r integration/bench/requirements-overmind-cache.txt
	@touch $@

$(VENVS)/bench/.requirements: integration/bench/requirements.txt | $(VENVS)/bench/bin/python need-uv
	$(UV) pip install --quiet --compile-bytecode --python $(@D)/bin/python -r $<
	@touch $@

.PHONY: always
always:

# As pip leaves an installed package; where PYTHONDONTWRITEBYTECODE is set, every process would compile the loader anew.
.PHONY: compiled
compiled: venv
	@PYTHONDONTWRITEBYTECODE= $(PY) -m compileall -q pyloader/overmind integration

.PHONY: generate
generate: venv ## the accessors of schema/*.fbs
	schema/generate.sh

.PHONY: clean
clean: ## remove what was built; checkpoints and results stay in $OVERMIND_WORK
	rm -rf bin cext/build pyloader/build $(VENV)/.cext $(VENV)/.pyloader
	find cext pyloader integration -name __pycache__ -prune -exec rm -rf {} +

##@ Check

.PHONY: test
test: build venv ## everything below but the benchmark, soak and lint-go
	@# Two at a time of those that are no worse for it.
	$(MAKE) --jobs=2 --output-sync=target lint test-go test-cext test-abi
	$(MAKE) test-py test-e2e test-e2e-ways test-smoke fuzz

.PHONY: lint
lint: venv check-generated ## gofmt, go vet, ruff, mypy
	@echo gofmt; unformatted=$$(gofmt -l cmd fs schema); [ -z "$$unformatted" ] || { echo "gofmt -w $$unformatted"; exit 1; }
	go vet ./...
	$(VENV)/bin/ruff check pyloader integration
	$(VENV)/bin/ruff format --check integration
	cd pyloader && ../$(VENV)/bin/mypy
	$(VENV)/bin/mypy --config-file integration/pyproject.toml integration

.PHONY: check-generated
check-generated: venv ## that the committed accessors are what the schema gives
	schema/generate.sh check

.PHONY: test-go
test-go: | need-go need-compiler ## the daemon, under the race detector
	go test -race ./...

.PHONY: test-cext
test-cext: venv ## the C++ helper, also under the address and undefined-behaviour sanitizers
	cd cext/tests && ../../$(PY) -m pytest -q
	PYTHON=$(abspath $(PY)) cext/sanitize.sh

.PHONY: test-py
test-py: build venv ## the loader, on a plain directory and against the daemon
	cd pyloader && ../$(PY) -m pytest

.PHONY: test-abi
test-abi: | need-uv need-compiler ## one binary of the helper on the oldest and the newest Python and torch
	PATH="$(dir $(UV)):$$PATH" cext/test_matrix.sh

# For the tests of daemons without privileges, which skip without it. As root, since it has to be setuid root.
.PHONY: fusermount
fusermount: $(WORK)/fuse3/bin/fusermount3 ## fusermount3 of the distribution, unless it is installed

$(WORK)/fuse3/bin/fusermount3:
	@mkdir -p $(WORK)/fuse3
	@if command -v fusermount3 >/dev/null; then \
		mkdir -p $(@D) && cp "$$(command -v fusermount3)" $@ && chmod 4755 $@; \
	elif command -v apt-get >/dev/null && (cd $(WORK)/fuse3 && apt-get download --quiet=2 fuse3 2>/dev/null) \
		&& dpkg -x $(WORK)/fuse3/fuse3_*.deb $(WORK)/fuse3; then \
		chmod 4755 $@; \
	else \
		echo 'no fusermount3: some tests will be skipped (apt-get install fuse3)'; \
	fi

.PHONY: test-e2e
test-e2e: build venv fusermount ## real mounts, real processes, faults
	$(PY) -m pytest -c integration/pyproject.toml --rootdir integration integration/tests

.PHONY: test-e2e-ways
test-e2e-ways: build venv ## the same without passthrough, then without fd passing too; without what has no arena in it
	for way in fd read; do \
		echo "arenas are reached by $$way"; \
		OVERMIND_E2E_WAY=$$way $(PY) -m pytest -c integration/pyproject.toml --rootdir integration integration/tests; \
	done

.PHONY: test-soak
test-soak: build venv ## a random simulation and cycles of load and evict, for a minute
	OVERMIND_SOAK_SECONDS=$(or $(OVERMIND_SOAK_SECONDS),60) $(PY) -m pytest -s -c integration/pyproject.toml \
		--rootdir integration integration/tests/test_soak.py

.PHONY: test-smoke
test-smoke: CASES_ARGS := --smoke
test-smoke: test-cases ## the smoke subset of the acceptance cases

.PHONY: test-cases
test-cases: build venv ## the acceptance cases in $CASES (default ../shared/cases) on a mount; $CASES_ARGS are theirs
	@if [ -e "$(CASES)/run.py" ]; then \
		$(PY) -m integration.cases $(CASES) $(CASES_ARGS); \
	else \
		echo "skipped: no acceptance cases in $(CASES) (set CASES to their folder)"; \
	fi

.PHONY: test-cases-older
test-cases-older: build venv-older ## the same with older libraries
	@if [ -e "$(CASES)/run.py" ]; then \
		$(OLDER)/bin/python -m integration.cases $(CASES) --work $(WORK)/cases-older $(CASES_ARGS); \
	else \
		echo "skipped: no acceptance cases in $(CASES) (set CASES to their folder)"; \
	fi

.PHONY: compatibility
compatibility: build venv venv-older ## both, and docs/compatibility.md from what was counted; half an hour
	@[ -e "$(CASES)/run.py" ] || { echo 'no acceptance cases in $(CASES): set CASES to their folder' >&2; exit 1; }
	$(PY) -m integration.cases $(CASES) -o $(WORK)/compatibility/new.json
	$(OLDER)/bin/python -m integration.cases $(CASES) --work $(WORK)/cases-older -o $(WORK)/compatibility/older.json
	$(PY) -m integration.compatibility $(WORK)/compatibility/new.json $(WORK)/compatibility/older.json

.PHONY: test-stable-fast
test-stable-fast: | need-uv need-compiler ## a UNet compiled by stable-fast, which is built in an environment of its own
	PATH="$(dir $(UV)):$$PATH" integration/stable_fast.sh

.PHONY: bench
bench: build venv compiled bench-env ## everything measured, beside what there is else; $BENCH_ARGS are its options, --quick for 25 minutes
	$(PY) -m integration.bench $(BENCH_ARGS)
	$(PY) -m integration.bench.ways $(WAYS_ARGS)

.PHONY: bench-check
bench-check: ## the same, and fail where a ratio is beyond its limit in integration/bench/promises.toml
	$(MAKE) bench BENCH_ARGS='--check $(BENCH_ARGS)' WAYS_ARGS='--check $(WAYS_ARGS)'

.PHONY: bench-gpu
bench-gpu: build venv compiled ## a cached pipeline to a GPU by every OVERMIND_PIN; $GPU_ARGS are its options. Without a GPU: 77
	$(PY) -m integration.bench.gpu $(GPU_ARGS)

.PHONY: fuzz
fuzz: venv | need-go need-compiler ## every fuzzer, of Go, C++ and Python, each for $FUZZTIME (default 20s), two at a time
	FUZZTIME=$(FUZZTIME) PYTHON=$(PY) integration/fuzz.sh

.PHONY: lint-go
lint-go: $(WORK)/bin/golangci-lint-$(GOLANGCI) ## golangci-lint; building it takes some minutes the first time
	$< run ./...

$(WORK)/bin/golangci-lint-$(GOLANGCI): | need-go
	GOBIN=$(WORK)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI)
	mv $(WORK)/bin/golangci-lint $@

# What a machine has to have, each with a message that says what to do.

.PHONY: need-go
need-go:
	@command -v go >/dev/null || { echo 'go is missing: install Go 1.26 or newer, https://go.dev/dl' >&2; exit 1; }

.PHONY: need-compiler
need-compiler: need-python
	@command -v $${CXX:-g++} >/dev/null || { echo 'g++ is missing: apt-get install g++, or set CXX' >&2; exit 1; }

.PHONY: need-python
need-python:
	@[ -n "$(PYTHON)" ] || { echo 'Python 3.10 or newer is missing: set PYTHON' >&2; exit 1; }
	@$(PYTHON) -c 'import pathlib, sysconfig; assert pathlib.Path(sysconfig.get_path("include"), "Python.h").exists()' \
		2>/dev/null || { echo 'Python.h is missing for $(PYTHON): apt-get install python3-dev, or set PYTHON' >&2; exit 1; }

.PHONY: need-uv
need-uv: need-python
	@[ -n "$(UV)" ] || { echo 'installing uv into $(WORK)/uv'; \
		$(PYTHON) -m venv $(WORK)/uv && $(WORK)/uv/bin/python -m pip install --quiet uv; }
