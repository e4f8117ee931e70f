# The commands of this project. Each makes .venv when it is missing or when pyproject.toml has changed.
#   make install   the package with its development tools in .venv, kernels built
#   make demo      what alpha-entmax does, then two translation models trained, compared and reported on (minutes, no network)
#   make test      all tests
#   make check     style, types, import contracts
#   make bench     speed and memory against torch and the entmax package (ten minutes)
#   make sanitize  the kernels under AddressSanitizer and UndefinedBehaviorSanitizer (some minutes)
#   make clean     remove .venv and everything generated

PYTHON  ?= python3
TORCH   ?= torch==2.13.0
WORKERS ?= 2

BIN   := .venv/bin
STAMP := .venv/.installed
SAY   := @echo "entformer:"

.PHONY: help install demo test check bench sanitize clean

help:
	@sed -n 's/^#   //p' Makefile

install: $(STAMP)
	$(SAY) "ready in .venv; try: make demo"

# torch comes first and by exact version, so that nothing below can swap it for another build.
$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "entformer: $(PYTHON) is not Python 3.11 or newer; name one that is: make PYTHON=python3.12"; exit 1; }
	@command -v "$${CXX:-c++}" >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	  echo "entformer: no C++ compiler (g++ or clang++) was found; everything works, but on the slow reference implementation."
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "entformer: making .venv"; $(PYTHON) -m venv .venv; }
	$(SAY) "installing $(TORCH)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check "$(TORCH)"
	$(SAY) "installing entformer and its development tools"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable ".[app,dev]"
	$(SAY) "building the kernels"
	@$(BIN)/python -m entformer.kernels.native
	@touch $@

demo: $(STAMP)
	@$(BIN)/entformer demo

# The kernels are compiled before the workers start, so that no test waits for another. The workers share the cores, so
# threads with nothing to do sleep instead of spinning.
test: $(STAMP)
	@$(BIN)/python -m entformer.kernels.native
	@OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -n $(WORKERS)

check: $(STAMP)
	@$(BIN)/ruff check --quiet --output-format concise src tests benchmarks examples
	@$(BIN)/ruff format --quiet --check src tests benchmarks examples
	@$(BIN)/mypy --strict src benchmarks
	@$(BIN)/lint-imports --no-logo

bench: $(STAMP)
	@mkdir -p bench-results
	@$(BIN)/entformer bench rows --json bench-results/rows.json --png bench-results/rows.png
	@$(BIN)/entformer bench attention --json bench-results/attention.json --png bench-results/attention.png

sanitize: $(STAMP)
	@PYTHON=$(BIN)/python scripts/sanitize.sh

clean:
	@rm -rf .venv build bench-results entformer-demo .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
	@rm -rf src/*.egg-info
