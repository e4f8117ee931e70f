"""`entformer.entmax` and its relatives: invalid arguments, masks, shapes of alpha, and the choice of an implementation."""

import math
import re
import warnings
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import entformer as ef
from entformer.errors import ArgumentError, ImplUnavailable
from entformer.kernels import native, triton_host
from entformer.kernels import registry as choice
from entformer.kernels.entmax import reference
from entformer.kernels.entmax.api import entmax

NAN, INF = math.nan, math.inf


def scores(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


# ---- invalid arguments --------------------------------------------------------------------------------------------------

X = scores(2, 4, 3)
FLOATS = r"x must be a floating-point tensor of scores of float16, bfloat16, float32 or float64, not torch\."
MASK = "mask must be a boolean tensor, True = may have weight; add a float mask to the scores instead"
INVALID: list[tuple[dict[str, Any], str]] = [
    ({"x": [1.0, 2.0]}, "x must be a floating-point tensor of scores, not list"),
    ({"x": torch.arange(3)}, FLOATS + r"int64; convert it first, e.g. with \.float\(\)"),
    ({"x": X.to(torch.complex64)}, FLOATS + "complex64"),
    ({"x": X.to(torch.float8_e4m3fn)}, FLOATS + "float8_e4m3fn"),
    ({"x": X.to_sparse()}, r"x must be a dense tensor of scores, not torch.sparse_coo; convert it with \.to_dense\(\)"),
    ({"x": torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged)}, "not a nested one; convert it with .*padded_tensor"),
    ({"dim": 3}, r"dim=3 is out of range for scores of shape \(2, 4, 3\)"),
    ({"dim": -4}, "dim=-4 is out of range"),
    ({"mask": torch.ones(2, 4, 3)}, MASK),
    ({"mask": [True, False, True]}, MASK),
    ({"mask": torch.ones(2, 4, dtype=torch.bool)}, r"mask of shape \(2, 4\) does not broadcast to scores of shape \(2, 4"),
    ({"mask": torch.ones(5, 2, 4, 3, dtype=torch.bool)}, r"mask of shape \(5, 2, 4, 3\) does not broadcast"),
    ({"mask": torch.ones(3, dtype=torch.bool, device="meta")}, "mask is on meta but the scores are on cpu; move one of them"),
    ({"alpha": INF}, "alpha=inf is not a finite number; alpha = 1 is softmax, 1.5 and 2 are the usual sparse choices"),
    ({"alpha": NAN}, "alpha=nan is not a finite number"),
    ({"alpha": True}, "alpha must be a number or a tensor, not bool"),
    ({"alpha": "1.5"}, "alpha must be a number or a tensor, not str; write alpha=1.5 without quotes"),
    ({"alpha": [1.5, 2.0]}, r"alpha must be a number or a tensor, not list; convert it with torch.as_tensor\(alpha\)"),
    ({"alpha": torch.tensor(True)}, "alpha must be a floating-point or integer tensor or a number, not torch.bool"),
    ({"alpha": torch.tensor([[1.5], [1.5], [1.5], [-INF]])}, "alpha must be finite, but the tensor given has infinite values"),
    ({"alpha": torch.ones(4, 1, device="meta")}, "alpha is on meta but the scores are on cpu; move one of them"),
    (
        {"alpha": torch.full((4, 3), 1.5)},
        r"does not broadcast to \(2, 4, 1\), .* dim=2 reduced to 1; for one alpha .* alpha_dim=",
    ),
    ({"alpha": torch.full((4,), 1.5)}, r"alpha of shape \(4,\) does not broadcast to \(2, 4, 1\)"),
    ({"alpha": torch.full((3,), 1.5), "alpha_dim": 1}, r"with alpha_dim=1, alpha must have shape \(4,\).*it has shape \(3,\)"),
    ({"alpha": torch.full((2, 4), 1.5), "alpha_dim": 1}, r"it has shape \(2, 4\)"),
    ({"alpha": torch.full((3,), 1.5), "alpha_dim": -1}, "along a dimension of the scores other than dim=2"),
    ({"alpha": torch.full((4,), 1.5), "alpha_dim": 3}, "alpha_dim=3 is out of range"),
    ({"dim": "last"}, "dim must be an integer, not str"),
    ({"impl": "cuda"}, "impl='cuda' is not known; choose one of auto, reference, cpu, triton"),
]


@pytest.mark.parametrize(("change", "message"), INVALID)
def test_invalid_arguments_raise(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        entmax(**{"x": X} | change)


def test_dir_lists_functions_and_packages() -> None:
    assert {"attention", "show", "MultiheadAttention", "analysis", "compat", "explore", "hf"} <= set(dir(ef))


# ---- masks --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.5, 2.0, 3.0])
def test_masked_scores_do_not_exist(alpha: float, impl: str) -> None:
    """Weights and gradients are those of the row without them, whatever stood there, NaN and infinities included."""
    x = scores(4, 6)
    keep = torch.tensor([True, False, True, True, False, True])
    x[:, ~keep] = torch.tensor([[NAN, NAN], [INF, NAN], [INF, -INF], [1e30, 0.0]])
    x.requires_grad_()
    exponent = torch.full((4, 1), alpha, dtype=torch.float64, requires_grad=True)
    weights = entmax(x, exponent, mask=keep, impl=impl)
    grad = scores(4, 6).cos()
    grad_x, grad_alpha = torch.autograd.grad(weights, (x, exponent), grad)
    alone = x.detach()[:, keep].requires_grad_()
    right = entmax(alone, exponent, impl=impl)
    right_x, right_alpha = torch.autograd.grad(right, (alone, exponent), grad[:, keep])
    assert (weights[:, ~keep] == 0.0).all()
    assert (grad_x[:, ~keep] == 0.0).all()
    # Summed in another order: a few units of float32.
    torch.testing.assert_close(weights[:, keep], right, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grad_x[:, keep], right_x, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(grad_alpha, right_alpha, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.2, 1.5, 2.0, 3.0])
def test_a_row_masked_throughout_gives_zeros(alpha: float, impl: str) -> None:
    x = scores(3, 5)
    x[1, 2] = NAN
    x.requires_grad_()
    exponent = torch.full((3, 1), alpha, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True], [False], [True]])
    weights = entmax(x, exponent, mask=mask, impl=impl)
    grad_x, grad_alpha = torch.autograd.grad(weights, (x, exponent), torch.full_like(weights, 2.0).cumsum(-1))
    assert (weights[1] == 0.0).all()
    assert (grad_x[1] == 0.0).all()
    assert grad_alpha[1].item() == 0.0
    assert weights[[0, 2]].sum(-1).tolist() == pytest.approx([1.0, 1.0], abs=1e-6)
    assert grad_x.isfinite().all()


@pytest.mark.parametrize("shape", [(4, 5), (1, 5), (5,), (4, 1), (3, 4, 5), (3, 1, 1), ()], ids=str)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_masks_broadcast(shape: tuple[int, ...], dim: int, impl: str) -> None:
    x = scores(3, 4, 5)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.6
    assert torch.equal(entmax(x, 1.5, dim, mask, impl=impl), entmax(x, 1.5, dim, mask.expand(3, 4, 5).contiguous(), impl=impl))


def test_an_alpha_of_nan_stays_in_its_row(impl: str) -> None:
    """A learned alpha that has gone wrong must show, as a score of NaN does, and not turn into a row of zeros."""
    alphas = torch.tensor([[1.5], [NAN], [1.0]])
    weights = entmax(scores(3, 5), alphas, impl=impl)
    assert weights[1].isnan().all()
    assert not weights[[0, 2]].isnan().any()


# ---- alpha --------------------------------------------------------------------------------------------------------------


def test_numbers_are_alphas(impl: str) -> None:
    x = scores(2, 5)
    right = entmax(x, 2.0, impl=impl)
    assert torch.equal(entmax(x, 2, impl=impl), right)
    assert torch.equal(entmax(x, torch.tensor(2.0), impl=impl), right)
    assert torch.equal(entmax(x, torch.tensor([2.0], dtype=torch.float16), impl=impl), right)
    assert torch.equal(entmax(x, torch.tensor(2), impl=impl), right)
    for alpha in (np.float32(1.5), np.float64(1.5), Fraction(3, 2)):
        assert torch.equal(entmax(x, alpha, impl=impl), entmax(x, impl=impl))  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (1, 1, 1), (4, 1), (3, 1, 1), (1, 4, 1), (3, 4, 1)], ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_alphas_broadcast_with_dim_reduced_to_one(shape: tuple[int, ...], dim: int, impl: str) -> None:
    x = scores(3, 4, 5).movedim(-1, dim)  # the row of five lies along `dim`
    alpha = 1.0 + torch.rand(shape, generator=torch.Generator().manual_seed(1))
    full = alpha.expand(3, 4, 1)
    weights = entmax(x, full.movedim(-1, dim), dim, impl=impl).movedim(dim, -1)
    for i in range(3):
        for j in range(4):
            row = entmax(x.movedim(dim, -1)[i, j], full[i, j].item(), impl=impl)
            torch.testing.assert_close(weights[i, j], row, rtol=1e-6, atol=1e-7)
    if dim == 2:
        assert torch.equal(entmax(x, alpha, dim, impl=impl), weights)


@pytest.mark.parametrize("alpha_dim", [0, 1, 2, -2, -3, -4])
def test_one_alpha_per_head(alpha_dim: int, impl: str) -> None:
    x = scores(2, 3, 4, 5)
    alphas = torch.linspace(1.0, 2.5, x.shape[alpha_dim])
    weights = entmax(x, alphas, alpha_dim=alpha_dim, impl=impl)
    for head, alpha in enumerate(alphas):
        assert torch.equal(weights.select(alpha_dim, head), entmax(x, alpha, impl=impl).select(alpha_dim, head))


# ---- implementations ----------------------------------------------------------------------------------------------------


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> str:
    """As on a machine where the kernels cannot be built."""
    why_not = "no C++ compiler was found."
    monkeypatch.setattr(native, "load", lambda: why_not)
    monkeypatch.setattr(choice, "_already_said", set())
    return why_not


def test_cpu_refuses_with_the_reason_and_never_falls_back(no_library: str) -> None:
    with pytest.raises(ImplUnavailable, match=re.escape(f"impl='cpu' cannot run here: {no_library}")):
        entmax(scores(2, 3), impl="cpu")


def test_auto_falls_back_and_says_so_once(no_library: str) -> None:
    x = scores(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = entmax(x, impl="reference")
    with pytest.warns(choice.SlowPathWarning, match=re.escape(no_library)) as said:
        weights = entmax(x)
    assert len(said) == 1
    assert said[0].filename == __file__  # it points at the caller
    assert torch.equal(weights, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(entmax(x, 2.0), entmax(x, 2.0, impl="reference"))


@pytest.mark.usefixtures("kernels")
def test_auto_takes_the_kernels_where_they_are() -> None:
    x = scores(7, 33)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choice.resolve("auto", "cpu") == "cpu"
        assert torch.equal(entmax(x, 1.3), entmax(x, 1.3, impl="cpu"))


def test_triton_refuses_cpu_tensors() -> None:
    with pytest.raises(ImplUnavailable, match="impl='triton' cannot run on a cpu tensor; move it to a cuda device or use"):
        entmax(scores(2, 3), impl="triton")


@pytest.mark.parametrize("installed", [True, False])
def test_why_triton_does_not_run(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_host, "installed", lambda: installed)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    reason = "torch sees no GPU" if installed else "Triton is not installed; GPU builds of torch bring it"
    with pytest.raises(ImplUnavailable, match=f"impl='triton' cannot run here: {reason}"):
        choice.resolve("triton", "cuda")


@pytest.mark.parametrize("device", ["cuda", "xpu", "cpu"])
def test_plain_arithmetic_is_float32_unless_float64_is_meant(device: str) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert choice.dense_dtype(dtype, device, exact=False) == torch.float32
        assert choice.dense_dtype(dtype, device, exact=True) == torch.float64
    assert choice.dense_dtype(torch.float64, device, exact=False) == torch.float64
    assert choice.dense_dtype(torch.float64, "mps", exact=True) == torch.float32  # which has no other


def test_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_already_said", set())
    with pytest.raises(ImplUnavailable, match="impl='cpu' cannot run on a cuda tensor; move it to the CPU or use impl='auto'"):
        choice.resolve("cpu", "cuda")
    monkeypatch.setattr(triton_host, "installed", lambda: False)
    with pytest.warns(choice.SlowPathWarning, match="slow reference implementation: Triton is not installed"):
        assert choice.resolve("auto", "cuda") == "reference"
    with pytest.warns(choice.SlowPathWarning, match="entformer has no fused kernel for xpu tensors yet; .* in float32"):
        assert choice.resolve("auto", "xpu") == "reference"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choice.resolve("auto", "cuda") == "reference"


def test_a_meta_tensor_gives_shapes_without_a_warning() -> None:
    x = torch.ones(2, 3, device="meta", requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights = entmax(x, 1.3, 0)
    assert weights.device.type == "meta"
    assert weights.shape == (2, 3)
    assert torch.autograd.grad(weights.sum(), x)[0].shape == (2, 3)


@pytest.mark.parametrize("alpha", [1.0, 1.1, 1.5, 2.0, 3.0])
def test_the_reference_is_accurate_in_float32(alpha: float) -> None:
    """As a GPU without kernels computes it."""
    x = 3.0 * scores(50, 40)
    alphas = torch.full((50,), alpha, dtype=torch.float64)
    right = reference.entmax(x.double(), alphas)
    torch.testing.assert_close(reference.entmax(x, alphas, torch.float32).double(), right, rtol=1e-4, atol=3e-6)


# ---- other functions of rows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [1, 1.0, torch.tensor(1), torch.tensor([[1.0], [1.0]])], ids=str)
def test_normmax_at_one_is_the_argmax(alpha: float | Tensor) -> None:
    x = torch.tensor([[0.3, 0.0, -2.0, 0.2], [1.0, 1.0, -INF, 0.0]], requires_grad=True)
    weights = ef.normmax_bisect(x, alpha)
    assert weights.tolist() == [[1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]]
    assert (torch.autograd.grad(weights.square().sum(), x)[0] == 0.0).all()
    loss = ef.normmax_bisect_loss(x[:1], torch.tensor([1]), alpha if isinstance(alpha, int | float) else 1)
    (grad,) = torch.autograd.grad(loss.sum(), x)
    torch.testing.assert_close(loss, torch.tensor([0.3]))
    assert grad[0].tolist() == [1.0, -1.0, 0.0, 0.0]


def test_integer_tensors_are_parameters() -> None:
    x = torch.tensor([[0.3, 0.0, -2.0, 0.2], [1.0, 1.0, -1.0, 0.0]])
    assert torch.equal(ef.normmax_bisect(x, torch.tensor(2)), ef.normmax_bisect(x, 2.0))
    assert torch.equal(ef.budget_bisect(x, torch.tensor([[1], [2]])), ef.budget_bisect(x, torch.tensor([[1.0], [2.0]])))
    assert torch.equal(ef.entmax_bisect(x, torch.tensor(2)), ef.entmax_bisect(x, 2.0))
    assert torch.equal(ef.entmax_loss(x, torch.tensor([0, 1]), torch.tensor(2)), ef.entmax_loss(x, torch.tensor([0, 1]), 2.0))
    assert torch.equal(ef.sparsemax(x, -1, torch.tensor(2)), ef.sparsemax(x))  # type: ignore[call-overload]


@pytest.mark.parametrize("dim", [0, 1, -2, 2])
@pytest.mark.parametrize(
    "name",
    [
        *("sparsemax", "entmax15", "sparsemax_bisect", "entmax_bisect", "normmax_bisect", "budget_bisect"),
        *("entmax", "log_entmax", "entmax_support"),
    ],
)
def test_results_are_contiguous_along_any_dimension(name: str, dim: int) -> None:
    """As those of softmax, on which callers use `.view`."""
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    assert torch.softmax(x, dim).is_contiguous()
    assert getattr(ef, name)(x, dim=dim).is_contiguous()


def test_a_mistyped_name_has_what_python_needs_to_suggest_another() -> None:
    with pytest.raises(AttributeError) as raised:
        ef.attenton  # noqa: B018
    assert raised.value.name == "attenton"
    assert "attention" in dir(raised.value.obj)
