"""Times the first call of entmax against the tenth, in new processes: python scripts/time_first_call.py [REPEATS]

torch is imported before. Exits with 1 if the first call takes over 50 ms more than the tenth in the median of the processes.
"""

import statistics
import subprocess
import sys

LIMIT = 50.0  # ms
CODE = """
import time, torch
x = torch.randn(8, 64)
import entformer as ef
times = []
for _ in range(10):
    start = time.perf_counter()
    ef.entmax(x, 1.5)
    times.append(time.perf_counter() - start)
print(1e3 * times[0], 1e3 * times[9])
"""


def main() -> int:
    """Prints every pair in milliseconds; returns the exit code."""
    differences = []
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 5):
        printed = subprocess.run([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True, check=True).stdout
        first, tenth = map(float, printed.split())
        differences.append(first - tenth)
        print(f"first call {first:.1f} ms, tenth {tenth:.2f} ms")
    median = statistics.median(differences)
    print(f"the first call takes {median:.1f} ms more (median; at most {max(differences):.1f}, allowed {LIMIT:.0f})")
    return int(median > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
