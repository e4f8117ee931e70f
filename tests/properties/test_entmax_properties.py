"""Properties of alpha-entmax, on rows drawn by hypothesis: ties, wide gaps, one score, many.

Properties hold in float64 to a few units in the last place, for both implementations. They are checked in float32 too where the
vector kernels, which handle only float32, could break them. Scores are multiples of 1/64 up to 32 in size: ties are common, and
sums and shifts are exact.
"""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from entformer.kernels.entmax.api import entmax

# The fixtures (kernels loaded, memory poisoned) hold for a whole test and keep no state, so examples may share them.
property_settings = settings(
    max_examples=120, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
pytestmark = pytest.mark.usefixtures("kernels", "poisoned_memory")
on_both = pytest.mark.parametrize("impl", ["cpu", "reference"])
in_both = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)

scores = st.one_of(
    st.lists(st.integers(-2048, 2048), min_size=1, max_size=40),
    st.lists(st.integers(-64, 64), min_size=1, max_size=90),
    st.lists(st.sampled_from([0, 16, 64, 640]), min_size=1, max_size=20),
).map(lambda row: [score / 64 for score in row])
sparse_alphas = st.one_of(st.sampled_from([1.0001, 1.25, 1.5, 2.0, 2.5, 4.0]), st.floats(1.001, 4.0))
alphas = st.one_of(st.sampled_from([1.0, 1.0 + 1e-7]), sparse_alphas)
any_alphas = st.one_of(st.sampled_from([0.5, 0.99]), st.floats(0.3, 1.0), alphas)


def tensor(row: list[float], dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(row, dtype=dtype)


def unit(dtype: torch.dtype, alpha: float) -> float:
    """What rounding may do to a weight. Beyond alpha = 2 a weight near the edge of the support is a root of what is left."""
    eps = torch.finfo(torch.float64).eps
    at_the_edge = (8 * eps) ** (1 / (alpha - 1)) if alpha > 2 else 0.0
    return 8 * torch.finfo(dtype).eps + at_the_edge


def deformed_log(p: Tensor, alpha: float) -> Tensor:
    """(p^e - 1)/e, the inverse of exp_e."""
    e = alpha - 1.0
    return p.log() if e == 0.0 else torch.expm1(e * p.log()) / e


@on_both
@in_both
@property_settings
@given(row=scores, alpha=any_alphas)
def test_weights_are_a_distribution(row: list[float], alpha: float, dtype: torch.dtype, impl: str) -> None:
    weights = entmax(tensor(row, dtype), alpha, impl=impl)
    assert (weights >= 0).all()
    assert abs(weights.double().sum().item() - 1.0) <= len(row) * unit(dtype, alpha)


@on_both
@pytest.mark.parametrize("spread", [0.0, 1e-6])
@pytest.mark.parametrize("n", [1000, 5000, 200_000])
def test_long_flat_rows_are_distributions(n: int, spread: float, impl: str) -> None:
    """Weights near 1/n have q = n^-(alpha - 1): a small number that must not be got as 1 minus one close to 1."""
    x = spread * torch.randn(n, generator=torch.Generator().manual_seed(n))
    found = {
        alpha: entmax(x, alpha, impl=impl).double().sum().item() for alpha in (0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 4.0, 6.0)
    }
    # n roundings of float32, each relative to its weight; torch.softmax itself is off by up to 4e-6 here.
    assert found == pytest.approx(dict.fromkeys(found, 1.0), abs=1e-5)


@on_both
@property_settings
@given(row=scores, alpha=st.one_of(st.sampled_from([0.5, 1.0]), st.floats(0.3, 1.0)))
def test_dense_alphas_have_no_zeros(row: list[float], alpha: float, impl: str) -> None:
    assert (entmax(tensor(row), alpha, impl=impl) > 0).all()


@on_both
@in_both
@property_settings
@given(row=scores, alpha=sparse_alphas)
def test_sparse_alphas_have_exact_zeros(row: list[float], alpha: float, dtype: torch.dtype, impl: str) -> None:
    """c is at least the maximum, so what lies 1/(alpha - 1) below the maximum is out."""
    x = tensor(row, dtype)
    out = x.double() < x.max().double() - 1.0 / (alpha - 1.0) - 1e-5
    assert (entmax(x, alpha, impl=impl)[out] == 0).all()


@on_both
@in_both
@property_settings
@given(row=scores, alpha=any_alphas, shift=st.integers(-(2**12), 2**12))
def test_shifting_all_scores_changes_no_bit(row: list[float], alpha: float, shift: int, dtype: torch.dtype, impl: str) -> None:
    x = tensor(row, dtype)
    assert torch.equal(entmax(x + shift, alpha, impl=impl), entmax(x, alpha, impl=impl))


@on_both
@in_both
@property_settings
@given(row=scores, alpha=any_alphas, data=st.data())
def test_permuting_scores_permutes_weights(
    row: list[float], alpha: float, data: st.DataObject, dtype: torch.dtype, impl: str
) -> None:
    order = torch.tensor(data.draw(st.permutations(range(len(row)))))
    x = tensor(row, dtype)
    there, back = entmax(x[order], alpha, impl=impl), entmax(x, alpha, impl=impl)[order]
    assert (there - back).abs().max().item() <= 2 * unit(dtype, alpha)


@on_both
@in_both
@property_settings
@given(row=scores, alpha=any_alphas)
def test_order_is_kept(row: list[float], alpha: float, dtype: torch.dtype, impl: str) -> None:
    x, order = tensor(row, dtype).sort()
    weights = entmax(tensor(row, dtype), alpha, impl=impl)[order]
    steps = weights[1:] - weights[:-1]
    assert (steps >= -2 * torch.finfo(dtype).eps * weights[1:]).all()
    assert (steps[x[1:] == x[:-1]] == 0).all()  # equal scores, equal bits


@on_both
@property_settings
@given(row=scores, one=alphas, other=alphas)
def test_the_support_never_grows_with_alpha(row: list[float], one: float, other: float, impl: str) -> None:
    low, high = sorted((one, other))
    x = tensor(row)
    weights = entmax(x, high, impl=impl)
    # In the support by more than rounding: q = p^(alpha - 1) is linear in the score and known to a few units.
    inside = weights.clamp(min=1e-300) ** (high - 1.0) > 1e-12
    assert (entmax(x, low, impl=impl)[inside & (weights > 0)] > 0).all()


@on_both
@in_both
@property_settings
@given(row=scores)
def test_alpha_1_is_softmax(row: list[float], dtype: torch.dtype, impl: str) -> None:
    x = tensor(row, dtype)
    ours, right = entmax(x, 1.0, impl=impl), torch.softmax(x.double(), -1)
    # exp(s - max) turns the rounding of an exponent up to 64 into as many units of the weight.
    assert ((ours - right).abs() <= 70 * torch.finfo(dtype).eps * right + torch.finfo(dtype).tiny).all()


@on_both
@in_both
@property_settings
@given(row=scores)
def test_alpha_2_is_the_projection_onto_the_simplex(row: list[float], dtype: torch.dtype, impl: str) -> None:
    descending = np.sort(np.asarray(row))[::-1]
    thresholds = (np.cumsum(descending) - 1.0) / np.arange(1, len(row) + 1)
    threshold = thresholds[np.flatnonzero(descending > thresholds)[-1]]
    right = np.maximum(np.asarray(row) - threshold, 0.0)
    # The threshold is as large as the scores here: the oracle itself rounds to units of 32.
    atol = 4 * torch.finfo(dtype).eps + 64 * torch.finfo(torch.float64).eps
    np.testing.assert_allclose(entmax(tensor(row, dtype), 2.0, impl=impl).double().numpy(), right, rtol=0.0, atol=atol)


@on_both
@property_settings
@given(row=scores, alpha=any_alphas)
def test_the_jacobian_is_symmetric_positive_and_its_rows_sum_to_zero(row: list[float], alpha: float, impl: str) -> None:
    x = tensor(row)
    jacobian = torch.autograd.functional.jacobian(lambda x: entmax(x, alpha, impl=impl), x)
    largest = max(jacobian.abs().max().item(), 1.0)
    # Each entry is exact to a few units of the largest; the weights behind it to eps/p, which w = p^(2 - alpha) inherits.
    tolerance = len(row) * 1e-13 * largest
    assert (jacobian - jacobian.mT).abs().max().item() <= tolerance
    assert jacobian.sum(-1).abs().max().item() <= tolerance
    assert torch.linalg.eigvalsh(0.5 * (jacobian + jacobian.mT)).min().item() >= -tolerance


@on_both
@in_both
@property_settings
@given(row=scores, alpha=any_alphas)
def test_weights_are_the_optimum(row: list[float], alpha: float, dtype: torch.dtype, impl: str) -> None:
    """max <x, p> + H(p) over the simplex: x_i + dH/dp_i is one number on the support, and nowhere larger outside it.

    That is, x_i - (p_i^e - 1)/e = c where p_i > 0, and exp_e(x_i - c) = 0 where p_i = 0.
    """
    e, x = alpha - 1.0, tensor(row, dtype)
    weights = entmax(x, alpha, impl=impl).double()
    x = x.double()
    # In float32 a weight far below its unit says little about its score; float64 can represent all of these.
    c = (x - deformed_log(weights, alpha))[weights > (1e-6 if dtype == torch.float32 else 0.0)]
    size = 1.0 + (x.max() - x.min()).item() + (c[0] - x.max()).abs().item()
    tolerance = 16 * torch.finfo(dtype).eps * size  # the kernels know x - c, of this size, to a few units; p^e/e adds one
    assert (c.max() - c.min()).item() <= tolerance
    for score in x[weights == 0].tolist():
        q = 1.0 + e * (score - c.min().item() - tolerance)
        weight = math.exp(math.log(q) / e if e != 0.0 else score - c.min().item()) if q > 0.0 else 0.0
        assert weight <= 3.0 * torch.finfo(dtype).tiny  # it may underflow


@pytest.mark.parametrize("impl", ["cpu", "reference"])
def test_eight_threads_at_once_give_the_same_bits(impl: str, threads: None) -> None:
    torch.set_num_threads(2)
    seed = torch.Generator().manual_seed(0)
    jobs = []
    for n in (3, 17, 64, 300, 1500):
        x = torch.randn(40, n, generator=seed) * 3.0
        jobs += [(x, alpha) for alpha in (1.0, 1.3, 1.5, 2.0, 2.5)] if impl == "cpu" else [(x[:4], 1.3)]

    def work(job: tuple[Tensor, float]) -> tuple[Tensor, Tensor, Tensor]:
        x, alpha = job[0].clone().requires_grad_(), torch.tensor(job[1], dtype=torch.float64, requires_grad=True)
        weights = entmax(x, alpha, impl=impl)
        return weights.detach(), *torch.autograd.grad(weights, (x, alpha), job[0].cos())

    alone = [work(job) for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(work, jobs * 4))
    for number, answer in enumerate(together):
        for ours, right in zip(answer, alone[number % len(jobs)], strict=True):
            assert torch.equal(ours, right)
