"""Run the fuzzer of the kernels (tests/parity/kernel_fuzzer.py) for as many random problems as you like.

python benchmarks/fuzz_kernels.py --cases 20000 --isa avx2,portable --seed 1
"""

import argparse
import sys
from pathlib import Path

import torch

from entformer.kernels import native

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from parity import kernel_fuzzer as fuzz  # type: ignore[import-not-found]


def main() -> None:
    parser = argparse.ArgumentParser(description="Run random problems through the C++ kernels and the float64 reference.")
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1, help="the first case")
    parser.add_argument("--isa", default=native.isa(), help=f"with commas between: {', '.join(native.INSTRUCTION_SETS)}")
    parser.add_argument("--kind", choices=[*fuzz.CHECKS, "both"], default="both")
    parser.add_argument("--keep-going", action="store_true", help="report every failure instead of stopping at the first")
    options = parser.parse_args()
    torch.set_num_threads(1)
    isas = options.isa.split(",")
    if unfit := [isa for isa in isas if not native.set_isa(isa)]:
        sys.exit(f"this CPU cannot run {', '.join(unfit)}")
    failures = 0
    for number in range(options.seed, options.seed + options.cases):
        for kind, check in fuzz.CHECKS.items():
            if options.kind not in (kind, "both") or (options.kind == "both" and (number % 2 == 0) != (kind == "rows")):
                continue
            try:
                check(number, isas)
            except Exception as problem:
                failures += 1
                print(f"{kind} {number}: {type(problem).__name__}: {problem}", flush=True)
                if not options.keep_going:
                    sys.exit(1)
        if number % 1000 == 0:
            print(f"{number - options.seed} cases, {failures} failures", flush=True)
    print(f"{options.cases} cases on {options.isa}, {failures} failures")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
