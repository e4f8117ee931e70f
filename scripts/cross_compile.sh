#!/usr/bin/env bash
# Compiles the kernels for 64-bit ARM (NEON) and compares them with float64 in an emulator: scripts/cross_compile.sh
#
# Needs Debian's packages g++-aarch64-linux-gnu and qemu-user; neither torch nor Python. $CXX and $RUN replace the compiler and the
# emulator: CXX=g++ RUN=env compares the portable kernels of this machine, CXX="g++ -mavx2 -mfma -mf16c" those for AVX2, and with
# -include scripts/emulate_avx512.h behind it the AVX-512 code on any processor. Exits with 0 if every difference is within its limit.
set -euo pipefail
cd "$(dirname "$0")/.."

read -ra CXX <<<"${CXX:-aarch64-linux-gnu-g++}"
RUN=${RUN:-qemu-aarch64}
for tool in "${CXX[0]}" "$RUN"; do
  command -v "$tool" >/dev/null || { echo "cross_compile: $tool is missing; install g++-aarch64-linux-gnu and qemu-user." >&2; exit 2; }
done
mkdir -p build/cross
[ "$RUN" = env ] || CXX+=(-static)  # an emulator of another processor has none of its libraries
"${CXX[@]}" -std=c++17 -O3 -fno-math-errno -ffp-contract=fast -Wall -Wextra -Wno-maybe-uninitialized -Isrc/entformer/csrc \
  src/entformer/csrc/kernels.cpp scripts/compare_kernels.cpp -o build/cross/compare
"$RUN" build/cross/compare
