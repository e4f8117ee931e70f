#!/usr/bin/env bash
# Tests the wheel in dist as a user without a compiler has it: scripts/test_wheel.sh [PYTEST ARGUMENTS]
#
# Installs it in build/test-wheel with $TORCH ($PYTHON creates the environment), runs `entformer doctor` and the tests with nothing in the
# PATH but that environment, and times the first call in new processes. Fails if anything is compiled. By default the parity tests run,
# on every instruction set of this CPU.
set -euo pipefail
cd "$(dirname "$0")/.."

wheel=$(ls dist/entformer-*.whl)
place=$PWD/build/test-wheel
rm -rf "$place"
"${PYTHON:-python3}" -m venv "$place"
echo "test_wheel: installing $wheel"
"$place/bin/python" -m pip install -qq --disable-pip-version-check "${TORCH:-torch==2.13.0}" # by exact version, first
"$place/bin/python" -m pip install -qq --disable-pip-version-check "$wheel[app]" pytest hypothesis mpmath entmax==1.3

alone() { env -i PATH="$place/bin" HOME="$place" ENTFORMER_CACHE="$place/cache" OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" "$@"; }
for compiler in c++ g++ clang++ gcc cc; do
  if PATH="$place/bin" command -v "$compiler" >/dev/null; then
    echo "test_wheel: there is a $compiler in $place/bin" >&2
    exit 2
  fi
done

alone entformer doctor
alone python -c '
import json, subprocess, sys
found = json.loads(subprocess.run(["entformer", "doctor", "--json"], stdout=subprocess.PIPE, check=True).stdout)
if found["origin"] != "wheel":
    sys.exit("test_wheel: the library is not that of the wheel, but " + found["origin"] + ": " + found["origin_reason"])
'
[ $# -gt 0 ] || set -- tests/parity
alone python -m pytest -p no:cacheprovider "$@"
alone python scripts/time_first_call.py
if [ -e "$place/cache" ]; then
  echo "test_wheel: something was written to the kernel cache" >&2
  exit 1
fi
