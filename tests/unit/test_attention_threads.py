"""Attention gives the same bits under any number of threads, of torch and of Python, and after a fork."""

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from entformer.kernels.attention.api import attention

pytestmark = pytest.mark.usefixtures("kernels", "threads")

# batch, query heads, key heads, queries, keys: one head and a long sequence are cut into parts; many heads are not.
SHAPES = [(1, 1, 1, 700, 700), (1, 1, 1, 1, 2000), (1, 4, 1, 130, 257), (4, 8, 8, 33, 65), (3, 2, 2, 65, 300)]
HOW: list[dict[str, Any]] = [
    {"alpha": 1.0},
    {"alpha": 1.01},
    {"alpha": 1.25, "is_causal": True},
    {"alpha": 1.5, "dropout_p": 0.2},
    {"alpha": 2.0},
    {"alpha": 2.5},
    {"normalizer": "rela"},
]


def compute(shape: tuple[int, ...], how: dict[str, Any], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Output, gradients, statistics and support."""
    batch, heads, key_heads, queries, keys = shape
    seed = torch.Generator().manual_seed(sum(shape))
    q, k, v = (
        torch.randn(batch, h, n, 16, generator=seed).to(dtype).requires_grad_()
        for h, n in ((heads, queries), (key_heads, keys), (key_heads, keys))
    )
    leaves = [q, k, v]
    if "alpha" in how:
        how = how | {"alpha": torch.full((heads,), how["alpha"], requires_grad=True)}
        leaves.append(how["alpha"])
    answer = attention(2.0 * q, k, v, **how, enable_gqa=True, return_stats=True, return_support=True, impl="cpu")
    grad = torch.randn(answer.output.shape, generator=seed).to(dtype)
    stats = answer.stats[:2] if how.get("normalizer") == "rela" else answer.stats  # ReLA has no logsumexp: NaN
    return [answer.output.detach(), *torch.autograd.grad(answer.output, leaves, grad), *stats, *answer.support]


def same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("shape", "how", "dtype"),  # every shape with three normalizers, every second one in bfloat16
    [
        (shape, HOW[(3 * i + j) % len(HOW)], torch.bfloat16 if j == 1 else torch.float32)
        for i, shape in enumerate(SHAPES)
        for j in range(3)
    ],
    ids=str,
)
def test_the_number_of_threads_does_not_show(shape: tuple[int, ...], how: dict[str, Any], dtype: torch.dtype) -> None:
    answers = []
    for count in (1, 2, 5, 2, 1):
        torch.set_num_threads(count)
        torch.manual_seed(0)
        answers.append(compute(shape, how, dtype))
    assert all(t.isfinite().all() for t in answers[0])
    assert all(same_bits(answers[0], other) for other in answers[1:])


def test_eight_python_threads_at_once() -> None:
    """Each walks through all problems from a different place, so that different ones meet."""
    torch.set_num_threads(2)
    jobs = [(shape, how) for shape in SHAPES for how in HOW if "dropout_p" not in how]  # torch's generator is shared
    right = [compute(*job) for job in jobs]
    everyone_is_here = threading.Barrier(8)

    def walk(start: int) -> bool:
        everyone_is_here.wait(timeout=60)
        order = [(start * 4 + i) % len(jobs) for i in range(len(jobs))]
        return all(same_bits(compute(*jobs[i]), right[i]) for i in order)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(walk, range(8))) == [True] * 8


def _child(right: list[list[Tensor]]) -> None:
    torch.set_num_threads(1)
    answers = [compute(shape, {"alpha": 1.5}) for shape in SHAPES]
    raise SystemExit(0 if all(same_bits(ours, theirs) for ours, theirs in zip(answers, right, strict=True)) else 3)


@pytest.mark.parametrize("threads_before", [1, 2])
def test_fork_after_use(threads_before: int) -> None:
    """As a DataLoader does: fork after the kernels ran, then one thread in the child.

    With more, every parallel operation of torch hangs there: GNU OpenMP's pool of threads does not survive a fork.
    """
    torch.set_num_threads(threads_before)
    right = [compute(shape, {"alpha": 1.5}) for shape in SHAPES]
    child = multiprocessing.get_context("fork").Process(target=_child, args=(right,))
    child.start()
    child.join(120)
    if child.is_alive():
        child.kill()
        pytest.fail("the forked child hangs")
    assert child.exitcode == 0
    assert all(same_bits(compute(shape, {"alpha": 1.5}), theirs) for shape, theirs in zip(SHAPES, right, strict=True))
