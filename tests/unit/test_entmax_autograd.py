"""Derivatives of `entmax` and how it behaves inside torch's machinery: autograd, torch.func, compile, export, autocast."""

import io
import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from entformer.kernels.entmax import ops
from entformer.kernels.entmax.api import entmax

ALPHAS = [0.7, 1.0, 1.0001, 1.3, 1.5, 2.0, 2.5, 3.0]
EDGE = 0.05  # how far 1 + e (s - c) stays from 0 at the points where derivatives are checked by differences


def smooth_scores(alpha: float, rows: int = 3, n: int = 6) -> Tensor:
    """Random rows (rows, n) with no entry near the edge of the support, where the mapping is not differentiable."""
    e = alpha - 1.0
    found = []
    seed = torch.Generator().manual_seed(0)
    while len(found) < rows:
        x = torch.randn(n, generator=seed, dtype=torch.float64)
        top = entmax(x, alpha, impl="reference").max()
        q = top**e + e * (x - x.max())  # 1 + e (s_i - c): at the largest score it is p^e
        if (q.abs() > EDGE).all():
            found.append(x)
    return torch.stack(found)


def per_row(alpha: float, rows: int = 3) -> Tensor:
    return torch.full((rows, 1), alpha, dtype=torch.float64)


# ---- against differences, in float64 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", ALPHAS)
def test_first_and_second_derivatives_in_scores_and_alpha(alpha: float, impl: str) -> None:
    tied = torch.tensor([[0.3, 0.3, 0.3, 0.3, 0.3, 0.3]], dtype=torch.float64)  # smooth too
    inputs = torch.cat([smooth_scores(alpha, rows=2), tied]).requires_grad_(), per_row(alpha).requires_grad_()
    ways = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(lambda x, a: entmax(x, a, impl=impl), inputs, **ways)
    assert torch.autograd.gradgradcheck(lambda x, a: entmax(x, a, impl=impl), inputs)


# ---- torch.func ---------------------------------------------------------------------------------------------------------


def test_vmap(impl: str) -> None:
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    alphas = torch.tensor([1.2, 1.5, 2.5])

    def f(x: Tensor, alpha: Tensor) -> Tensor:
        return entmax(x, alpha, impl=impl)

    one_by_one = torch.stack([f(x[i], alphas[i]) for i in range(3)])
    assert torch.equal(torch.func.vmap(f)(x, alphas), one_by_one)
    assert torch.equal(torch.func.vmap(f, (1, 0))(x.movedim(0, 1), alphas), one_by_one)
    assert torch.equal(torch.func.vmap(f, (-1, 0), out_dims=-1)(x.movedim(0, -1), alphas).movedim(-1, 0), one_by_one)
    assert torch.equal(torch.func.vmap(f, (0, None))(x, alphas[0]), f(x, alphas[0]))
    assert torch.equal(torch.func.vmap(f, (None, 0))(x[0], alphas), torch.stack([f(x[0], a) for a in alphas]))
    assert torch.equal(torch.func.vmap(lambda x: entmax(x, 1.5, dim=0, impl=impl))(x), entmax(x, 1.5, dim=1, impl=impl))
    nested = torch.func.vmap(torch.func.vmap(f, (0, None)), (None, 0))(x[0], alphas)
    assert torch.equal(nested, torch.stack([f(x[0], a) for a in alphas]))
    masked = torch.func.vmap(lambda x, m: entmax(x, 1.5, mask=m, impl=impl))(x, x > 0)
    assert torch.equal(masked, entmax(x, 1.5, mask=x > 0, impl=impl))


@pytest.mark.parametrize("alpha", [0.7, 1.0, 1.5, 2.0, 2.5])
def test_jacobians_and_hessians(alpha: float, impl: str) -> None:
    point = smooth_scores(alpha)[0], torch.tensor(alpha, dtype=torch.float64)

    def f(x: Tensor, alpha: Tensor) -> Tensor:
        return entmax(x, alpha, impl=impl)

    def loss(x: Tensor, alpha: Tensor) -> Tensor:
        return (f(x, alpha) - torch.linspace(0, 1, 6, dtype=torch.float64)).square().sum()

    right = torch.autograd.functional.jacobian(f, point)
    for transform in (torch.func.jacrev, torch.func.jacfwd):
        torch.testing.assert_close(transform(f, (0, 1))(*point), right, rtol=1e-10, atol=1e-12)
    direction = torch.linspace(-1, 1, 6, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64)
    change = torch.func.jvp(f, point, direction)[1]
    torch.testing.assert_close(change, right[0] @ direction[0] + right[1] * direction[1], rtol=1e-10, atol=1e-12)
    twice = torch.autograd.functional.hessian(loss, point)
    reverse = torch.func.jacrev(torch.func.jacrev(loss, (0, 1)), (0, 1))(*point)
    torch.testing.assert_close(torch.func.hessian(loss, (0, 1))(*point), twice, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(reverse, twice, rtol=1e-8, atol=1e-9)


# ---- the operators ------------------------------------------------------------------------------------------------------


def _operator_inputs() -> list[tuple[Tensor, Tensor]]:
    seed = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 5, generator=seed)
    return [
        (x, torch.full((2, 3), 1.5, dtype=torch.float64)),
        (x.double(), 1.0 + torch.rand(2, 3, generator=seed, dtype=torch.float64)),
        (x.bfloat16(), torch.full((), 1.3, dtype=torch.float64).expand(2, 3)),
        (x.mT, 1.0 + torch.rand(2, 5, generator=seed, dtype=torch.float64)),
        (x[0, 0], torch.full((), 2.0, dtype=torch.float64)),
        (x[:0], torch.empty(0, 3, dtype=torch.float64)),
        (x[..., :0], torch.full((2, 3), 1.5, dtype=torch.float64)),
    ]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("case", range(len(_operator_inputs())))
def test_opcheck_forward(case: int) -> None:
    x, alpha = _operator_inputs()[case]
    torch.library.opcheck(ops.entmax, (x, alpha))
    torch.library.opcheck(ops.entmax, (x.detach().requires_grad_(), alpha.detach().requires_grad_()))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("case", "needs_alpha_grad"), [(0, False), (6, False), *((case, True) for case in range(len(_operator_inputs())))]
)
def test_opcheck_backward(case: int, needs_alpha_grad: bool) -> None:
    x, alpha = _operator_inputs()[case]
    weights = ops.entmax(x, alpha)
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
    torch.library.opcheck(ops.entmax_backward, (grad, weights, alpha, needs_alpha_grad))
    tensors = [t.detach().requires_grad_() for t in (grad, weights, alpha)]
    torch.library.opcheck(ops.entmax_backward, (*tensors, needs_alpha_grad))


# ---- compile and export -------------------------------------------------------------------------------------------------


class Heads(nn.Module):
    """Scores (B, 3, L, n) with one learned alpha per head."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor([1.0, 1.5, 1.9]))

    def forward(self, scores: Tensor) -> Tensor:
        return entmax(2.0 * scores, self.alpha, alpha_dim=1)


def run(f: Callable[[Tensor], Tensor], x: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
    """Output and gradients of a loss that is not a constant."""
    x = x.detach().clone().requires_grad_()
    y = f(x)
    return y.detach(), *torch.autograd.grad((y * torch.linspace(-1, 1, y.shape[-1])).sum(), (x, *parameters))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_with_dynamic_shapes(backend: str) -> None:
    torch._dynamo.reset()
    heads = Heads()
    compiled = torch.compile(heads, fullgraph=True, dynamic=True, backend=backend)
    for shape in ((2, 3, 4, 5), (1, 3, 4, 5), (2, 3, 7, 33), (5, 3, 2, 64)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        for ours, eager in zip(run(compiled, x, heads.alpha), run(heads, x, heads.alpha), strict=True):
            torch.testing.assert_close(ours, eager, rtol=1e-6, atol=1e-6)  # the compiler may fuse the factor 2 differently


@pytest.mark.usefixtures("kernels")
def test_compile_with_alpha_a_number_that_changes_a_mask_and_a_dim() -> None:
    """As in a schedule from dense to sparse: the second alpha makes the compiler treat it as a variable."""
    torch._dynamo.reset()

    def f(x: Tensor, alpha: float) -> Tensor:
        return entmax(x.sin(), alpha, dim=1, mask=x > -1.0).mT

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for shape, alpha in (((2, 5, 3), 1.5), ((4, 9, 3), 1.25), ((4, 9, 3), 2.0)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        for ours, eager in zip(run(partial(compiled, alpha=alpha), x), run(partial(f, alpha=alpha), x), strict=True):
            torch.testing.assert_close(ours, eager, rtol=0.0, atol=0.0)


def test_compile_the_reference() -> None:
    """What a machine without a compiler traces: no graph break. (Eager backend: its unrolled steps are many.)"""
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: entmax(x, 1.5, impl="reference"), fullgraph=True, backend="eager")
    x = torch.randn(3, 7, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(compiled(x), entmax(x, 1.5, impl="reference"))


@pytest.mark.usefixtures("kernels")
def test_export() -> None:
    heads = Heads()
    sizes = {"scores": {0: torch.export.Dim("batch", min=1, max=64), 3: torch.export.Dim("keys", min=2, max=512)}}
    program = torch.export.export(heads, (torch.randn(2, 3, 4, 5),), dynamic_shapes=sizes)
    assert any(node.target is ops.entmax for node in program.graph.nodes)
    kept = io.BytesIO()
    torch.export.save(program, kept)
    kept.seek(0)
    loaded = torch.export.load(kept).module()
    x = torch.randn(7, 3, 4, 33, generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded(x), heads(x))


# ---- modes and corner cases ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_under_autocast_the_result_is_float32(dtype: torch.dtype, impl: str) -> None:
    """As torch has it for softmax on CUDA. (On the CPU its softmax keeps the narrow dtype; sparse weights deserve better.)"""
    x = torch.randn(4, 33, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        weights = entmax(x, 1.5, impl=impl)
        assert weights.dtype == (dtype if dtype == torch.float64 else torch.float32)
    weights.square().sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype
    right = entmax(x.double(), 1.5, impl="reference").to(weights.dtype)
    torch.testing.assert_close(weights, right, rtol=torch.finfo(weights.dtype).eps, atol=1e-6)


def test_inference_mode_and_no_grad(impl: str) -> None:
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    right = entmax(x, 1.5, impl=impl).detach()
    with torch.inference_mode():
        weights = entmax(x, 1.5, impl=impl)
        assert weights.is_inference()
        assert torch.equal(weights, right)
    with torch.no_grad():
        weights = entmax(x, 1.5, impl=impl)
    assert not weights.requires_grad
    assert torch.equal(weights, right)


def test_gradient_to_a_shared_alpha_is_the_sum_over_its_rows(impl: str) -> None:
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = torch.tensor([1.2, 1.5, 2.0], dtype=torch.float64)
    target = torch.linspace(0, 1, 5, dtype=torch.float64)

    def gradient(alpha: Tensor, **where: int) -> Tensor:
        alpha = alpha.clone().requires_grad_()
        return torch.autograd.grad((entmax(x, alpha, impl=impl, **where) * target).sum(), alpha)[0]

    each = gradient(values[None, :, None, None].expand(2, 3, 4, 1))
    torch.testing.assert_close(gradient(values, alpha_dim=1), each.sum((0, 2, 3)))
    torch.testing.assert_close(gradient(values[:, None, None]), each.sum((0, 3))[:, :].sum(1)[:, None, None])
    one = torch.full((2, 3, 4, 1), 1.5, dtype=torch.float64)
    torch.testing.assert_close(gradient(torch.tensor(1.5, dtype=torch.float64)), gradient(one).sum())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_gradients_have_the_dtype_of_their_tensor_and_do_not_need_the_other(dtype: torch.dtype, impl: str) -> None:
    alpha = torch.tensor([[1.25], [1.5]], dtype=dtype, requires_grad=True)
    x = torch.randn(2, 9, generator=torch.Generator().manual_seed(0), requires_grad=True)
    grad_x, grad_alpha = torch.autograd.grad(entmax(x, alpha, impl=impl).square().sum(), (x, alpha))
    assert (grad_x.dtype, grad_alpha.dtype) == (torch.float32, dtype)
    (only_x,) = torch.autograd.grad(entmax(x, alpha.detach(), impl=impl).square().sum(), x)
    (only_alpha,) = torch.autograd.grad(entmax(x.detach(), alpha, impl=impl).square().sum(), alpha)
    torch.testing.assert_close(only_x, grad_x, rtol=1e-6, atol=1e-6)  # without alpha the kernel may take a shorter way
    assert torch.equal(only_alpha, grad_alpha)


@pytest.mark.parametrize(
    ("shape", "dim"), [((0, 5), -1), ((3, 0), -1), ((3, 0), 0), ((0,), 0), ((2, 0, 4), 1), ((2, 0, 4), 2), ((0, 0), 0)], ids=str
)
def test_tensors_of_size_zero(shape: tuple[int, ...], dim: int, impl: str) -> None:
    x = torch.empty(shape, requires_grad=True)
    rows = [1 if d == dim % len(shape) else size for d, size in enumerate(shape)]
    alpha = torch.full(rows, 1.5, requires_grad=True)
    weights = entmax(x, alpha, dim, impl=impl)
    assert weights.shape == shape
    grad_x, grad_alpha = torch.autograd.grad(weights.sum(), (x, alpha))
    assert grad_x.shape == shape
    assert torch.equal(grad_alpha, torch.zeros(rows))
    assert entmax(x, 1.5, dim, torch.ones(shape, dtype=torch.bool), impl=impl).shape == shape


def test_a_tensor_without_dimensions(impl: str) -> None:
    x = torch.tensor(-3.0, requires_grad=True)
    alpha = torch.tensor(1.5, requires_grad=True)
    weight = entmax(x, alpha, impl=impl)
    assert weight.shape == ()
    assert weight.item() == 1.0
    assert [g.item() for g in torch.autograd.grad(weight, (x, alpha))] == [0.0, 0.0]
    assert entmax(x, 1.5, mask=torch.tensor(False), impl=impl).item() == 0.0
    assert math.isnan(entmax(torch.tensor(math.nan), 1.5, impl=impl).item())


def test_changing_the_output_in_place_is_noticed() -> None:
    """The kernels' backward reads the output: as with softmax, a changed one must raise, never give a wrong gradient."""
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    weights = entmax(x, 1.5)
    weights.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        weights.square().sum().backward()
