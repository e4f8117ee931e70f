"""`nn.rms_norm.RMSNorm` is torch.nn.RMSNorm, values, gradients and second gradients."""

import pytest
import torch

from entformer.nn.rms_norm import RMSNorm


def pair(size: int, dtype: torch.dtype) -> tuple[RMSNorm, torch.nn.RMSNorm]:
    ours, theirs = RMSNorm(size, eps=1e-6, dtype=dtype), torch.nn.RMSNorm(size, eps=1e-6, dtype=dtype)
    torch.manual_seed(0)
    with torch.no_grad():
        theirs.weight.normal_()
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 16), (16,), (0, 16), (1, 1, 16)])
def test_equals_torch(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    ours, theirs = pair(16, dtype)
    x, grad = torch.randn(shape, dtype=dtype).requires_grad_(), torch.randn(shape, dtype=dtype)
    found, expected = ours(x), theirs(x)
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(y, (x, norm.weight), grad) for y, norm in ((found, ours), (expected, theirs)))
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other)


def test_layouts_and_small_states() -> None:
    ours, theirs = pair(8, torch.float64)
    x = (
        (1e-3 * torch.randn(8, 6, 4, dtype=torch.float64)).permute(2, 1, 0).requires_grad_()
    )  # eps counts, and rows are not contiguous
    own, other = (torch.autograd.grad(norm(x).square().sum(), x) for norm in (ours, theirs))
    torch.testing.assert_close(own, other)


def test_second_gradients() -> None:
    ours, _ = pair(5, torch.float64)
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)

    def call(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(ours, {"weight": weight}, (x,))

    assert torch.autograd.gradcheck(call, (x, ours.weight))
    assert torch.autograd.gradgradcheck(call, (x, ours.weight))
    assert torch.autograd.gradcheck(call, (x, ours.weight), check_forward_ad=True, check_backward_ad=False)


def test_backward_inside_autocast_keeps_the_precision() -> None:
    ours, theirs = pair(64, torch.float32)
    x = torch.randn(7, 64, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        own, other = (torch.autograd.grad(norm(x).pow(3).sum(), (x, norm.weight)) for norm in (ours, theirs))
    torch.testing.assert_close(own, other)


@pytest.mark.parametrize("options", [{}, {"elementwise_affine": False}])
def test_options_are_those_of_torch(options: dict[str, bool]) -> None:
    x = torch.randn(3, 4)
    torch.testing.assert_close(RMSNorm(4, **options)(x), torch.nn.RMSNorm(4, **options)(x))
    assert torch.equal(RMSNorm((3, 4))(x), torch.nn.RMSNorm((3, 4))(x))


def test_torch_fx_records_a_call() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), RMSNorm(4))
    traced = torch.fx.symbolic_trace(model)
    x = torch.randn(3, 4)
    assert torch.equal(traced(x), model(x))
