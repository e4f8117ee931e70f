#!/usr/bin/env bash
# Runs the parity tests on kernels built with AddressSanitizer and UndefinedBehaviorSanitizer: scripts/sanitize.sh [PYTEST ARGUMENTS]
#
# Needs g++ and the development environment (.venv, or $PYTHON). $WORKERS is the number of processes (2). Exits with 0 if clean.
# Memory is allocated full of 0xff, NaN in every float type, so that reads of uninitialized memory change the results.
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-.venv/bin/python}
export CXX=${CXX:-g++}
export PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH}
export ENTFORMER_CACHE="$PWD/build/sanitize" # not the cache of everyday use
# -O1: the compiler takes minutes for instrumented -O3.
export ENTFORMER_CXXFLAGS="-O1 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"

runtime=$("$CXX" -print-file-name=libasan.so)
standard=$("$CXX" -print-file-name=libstdc++.so.6) # else the runtime does not find the function that throws
if [ ! -e "$runtime" ]; then
  echo "sanitize: $CXX has no libasan.so; install gcc's sanitizer library, or set CXX=g++." >&2
  exit 2
fi

echo "sanitize: building"
# Built, not loaded: loading needs the runtime in LD_PRELOAD, which would slow the compiler down.
"$PYTHON" -c '
import sys
from entformer.kernels import native
try:
    library = native._cached(native.cache_root()) or native._build(native.cache_root())
except native.BuildError as err:
    sys.exit(f"sanitize: {err}")
if b"__asan_init" not in library.read_bytes():
    sys.exit("sanitize: the library is not instrumented; ENTFORMER_CXXFLAGS did not reach the compiler.")
'

[ $# -gt 0 ] || set -- tests/parity/test_entmax.py tests/parity/test_attention.py tests/parity/test_attention_edges.py \
  tests/parity/test_not_finite.py tests/parity/test_ties.py tests/parity/test_fuzz.py tests/parity/test_hostile_operators.py \
  tests/parity/test_attention_features.py
echo "sanitize: running $*"
# Reports go to stderr, which pytest must not capture; signals are handled by the runtime. Python itself leaks on purpose.
if LD_PRELOAD="$runtime $standard" \
  ASAN_OPTIONS="detect_leaks=0:malloc_fill_byte=255:max_malloc_fill_size=1073741824" \
  UBSAN_OPTIONS="print_stacktrace=1" \
  "$PYTHON" -m pytest -n "${WORKERS:-2}" -p no:faulthandler --capture=sys "$@"; then
  echo "sanitize: clean"
else
  echo "sanitize: NOT clean, see above" >&2
  exit 1
fi
