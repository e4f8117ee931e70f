"""Freed memory stays with the process when a benchmark asks for it: the same tensors again cost no page faults.

Which piece of freed memory serves a request is the C library's business: now and then it cuts one up and a tensor gets fresh
pages. So many rounds are counted, and the median must be free of faults.
"""

import platform
import subprocess
import sys

import pytest

from entformer.bench import allocator

SCRIPT = """
import resource, statistics, torch
from entformer.bench.allocator import keep_freed_memory
{ask}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(4 * 2**20) + 1.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(statistics.median(faults() for _ in range(41)))
"""


def faults_in_the_median_round(ask: str) -> float:
    script = SCRIPT.format(ask=ask)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    return float(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
def test_the_same_tensors_again_cost_no_pages() -> None:
    kept = faults_in_the_median_round("assert keep_freed_memory()")
    returned = faults_in_the_median_round("")
    assert kept < 100 or kept < returned / 2  # with pages of 4 KB, 0 and 8192


def test_a_c_library_without_the_setting_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    assert not allocator.keep_freed_memory()
