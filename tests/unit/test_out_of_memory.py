"""Error messages when memory cannot be allocated: one sentence, whichever allocation fails, and the next call works.

The cases run in a process of their own, whose address space is limited once their inputs are there.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import entformer

pytestmark = [
    pytest.mark.usefixtures("kernels"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads the size of the process from /proc"),
]

BEGIN = """
import resource, torch, entformer as ef

torch.set_num_threads(1)
n = 1 << 20

def megabytes(numbers):
    return numbers * 4 / 2**20

def sentence(call, *, fits, fails):
    '''Prints the error of `call` when `fits` megabytes can be allocated, but not `fails` more.'''
    pages = int(open("/proc/self/statm").read().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    free_bytes = int((fits + fails / 2) * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + free_bytes, before[1]))
    try:
        call()
        print("no error")
    except RuntimeError as err:
        print(err)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    call()
"""

ROWS = """
x = torch.zeros(4 * n)
alpha = torch.tensor(1.5, dtype=torch.float64)
weights = ef.entmax(x, 1.5, impl="cpu")
grad = torch.ones_like(x)
forward = lambda: torch.ops.entformer.entmax(x, alpha)
backward = lambda: torch.ops.entformer.entmax_backward(grad, weights, alpha, False)
"""

# Keys that are one key seen many times take no memory; forward needs a bias per key and, for each thread, rows of scores.
ATTENTION = """
q = torch.zeros(1, 1, 1, 16, requires_grad=True)
k = torch.zeros(1, 1, 1, 16).expand(1, 1, n, 16)
forward = lambda: ef.attention(q.detach(), k, k)
out = ef.attention(q, k, k)
backward = lambda: torch.autograd.grad(out, q, torch.ones_like(out), retain_graph=True)
backward()
"""

SCRATCH_OF_ROWS = "entmax: there is not enough memory to work on rows of 4194304 scores; free some, or use shorter rows."
SCRATCH = "attention: there is not enough memory for the scratch space of this many keys; free some, or attend to fewer."
TENSOR = "there is not enough memory for a tensor of shape {}; free some, or use smaller or fewer sequences."

CASES = {
    "rows": (
        ROWS,
        {
            "sentence(forward, fits=0, fails=megabytes(4 * n))": TENSOR.format("(4194304)"),
            "sentence(forward, fits=megabytes(4 * n), fails=megabytes(8 * n))": SCRATCH_OF_ROWS,
            "sentence(backward, fits=0, fails=megabytes(4 * n))": TENSOR.format("(4194304)"),
            "sentence(backward, fits=megabytes(4 * n), fails=megabytes(8 * n))": SCRATCH_OF_ROWS,
        },
    ),
    "attention": (
        ATTENTION,
        {
            "sentence(forward, fits=megabytes(n), fails=megabytes(20 * n))": SCRATCH,
            "sentence(backward, fits=0, fails=megabytes(16 * n))": TENSOR.format("(1, 1, 1048576, 16)"),
            "sentence(backward, fits=megabytes(33 * n), fails=megabytes(20 * n))": SCRATCH,
        },
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_failed_allocation_is_one_sentence(case: str) -> None:
    tensors, sentences = CASES[case]
    environment = {"PYTHONPATH": str(Path(entformer.__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    environment |= {"MALLOC_MMAP_THRESHOLD_": "65536"}  # freed tensors are returned to the system, not reused
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + tensors + "\n".join(sentences)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == list(sentences.values()), done.stderr
    assert done.returncode == 0, done.stderr
