"""`nn.linear` by oneDNN is torch's linear map, values and gradients, for tensors of any layout."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entformer.nn import linear as module
from entformer.nn.linear import Linear, add_product, linear, multiply

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")

Calls = list[tuple[int, ...]]


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Uses oneDNN on any processor, for products of any size; returns the shapes it was called with."""
    shapes: Calls = []
    product = module._onednn

    def recorded(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
        shapes.append((*a.shape, b.shape[0]))
        return product(a, b, bias)

    monkeypatch.setattr(module, "_onednn", recorded)
    monkeypatch.setattr(module, "_onednn_is_faster", lambda: True)
    monkeypatch.setattr(module, "SMALLEST", 1)
    monkeypatch.setattr(module, "BLOCKS", (4, 2))
    return shapes


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


LAYOUTS: dict[str, Callable[[int, int], Tensor]] = {
    "contiguous": random,
    "transposed": lambda m, n: random(n, m).t(),
    "gaps between rows": lambda m, n: random(m, n + 3)[:, 1 : n + 1],
    "gaps between columns": lambda m, n: random(m, 2 * n)[:, ::2],
    "one row": lambda m, n: random(1, n).expand(m, n),
    "one number": lambda m, n: random(1, 1).expand(m, n),
    "overlapping": lambda m, n: random(m + n, 1).flatten().as_strided((m, n), (1, 1)),
}


@pytest.mark.parametrize("bias", ["none", "contiguous", "strided", "expanded"])
@pytest.mark.parametrize("of_weight", LAYOUTS)
@pytest.mark.parametrize("of_x", LAYOUTS)
def test_layouts(of_x: str, of_weight: str, bias: str, calls: Calls) -> None:
    x, weight = LAYOUTS[of_x](5, 7).requires_grad_(), LAYOUTS[of_weight](6, 7).requires_grad_()
    offset = {"none": None, "contiguous": random(6), "strided": random(12)[::2], "expanded": random(1).expand(6)}[bias]
    inputs = (x, weight) if offset is None else (x, weight, offset.requires_grad_())
    found, expected = linear(*inputs), F.linear(*inputs)
    assert calls
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(linear(*inputs).detach(), expected)
    for layout in LAYOUTS.values():
        grads = (torch.autograd.grad(y, inputs, layout(5, 6), retain_graph=True) for y in (found, expected))
        for own, other in zip(*grads, strict=True):
            torch.testing.assert_close(own, other)


@pytest.mark.parametrize("of_b", LAYOUTS)
@pytest.mark.parametrize("of_a", LAYOUTS)
def test_products_without_gradient(of_a: str, of_b: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for m, k, n in ((5, 7, 6), (2, 9, 17), (17, 2, 3)):
        for part in (1, 2 * n, 1000):
            monkeypatch.setattr(module, "PART", part)
            a, b = LAYOUTS[of_a](m, k), LAYOUTS[of_b](k, n)
            torch.testing.assert_close(multiply(a, b), a @ b)
            a, total = LAYOUTS[of_a](k, m), random(m, n)
            expected = total + a.t() @ b
            add_product(total, a, b)
            torch.testing.assert_close(total, expected)


@pytest.mark.parametrize("shape", [(7,), (1, 7), (0, 7), (2, 0, 7), (2, 3, 4, 7)])
def test_batch_dimensions(shape: tuple[int, ...]) -> None:
    x, weight, bias = random(*shape).requires_grad_(), random(6, 7).requires_grad_(), random(6).requires_grad_()
    found, expected = linear(x, weight, bias), F.linear(x, weight, bias)
    torch.testing.assert_close(found, expected)
    grads = (torch.autograd.grad(y.square().sum(), (x, weight, bias)) for y in (found, expected))
    for own, other in zip(*grads, strict=True):
        torch.testing.assert_close(own, other)


def test_only_gradients_that_are_needed(calls: Calls) -> None:
    x, weight = random(5, 7), random(6, 7).requires_grad_()
    linear(x, weight).sum().backward()
    assert calls == [(4, 7, 6), (6, 4, 7)]


def test_shapes_are_few_whatever_the_number_of_rows(calls: Calls) -> None:
    weight = random(6, 7).requires_grad_()
    for rows in range(2, 40):
        linear(random(rows, 7).requires_grad_(), weight).sum().backward()
    assert len(set(calls)) == 6  # blocks of two sizes, three products


def test_what_is_not_finite_stays_in_its_row() -> None:
    x = random(5, 7)
    x[2, 3], x[4, 0] = float("nan"), float("inf")
    assert linear(x, random(6, 7)).isfinite().all(1).tolist() == [True, True, False, True, False]


def test_second_gradients() -> None:
    x, weight, bias = random(5, 7).requires_grad_(), random(6, 7).requires_grad_(), random(6).requires_grad_()

    def second(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        grads = torch.autograd.grad(function(x, weight, bias).pow(3).sum(), (x, weight, bias), create_graph=True)
        return torch.autograd.grad(sum(grad.square().sum() for grad in grads), (x, weight, bias))

    for own, other in zip(second(linear), second(F.linear), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-3)


def test_transforms(calls: Calls) -> None:
    x, weight = random(4, 5, 7), random(6, 7)

    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return linear(x, weight).square().sum()

    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, x)
    assert not calls  # torch's own function has the rules
    expected = torch.stack([torch.autograd.functional.jacobian(lambda w, part=part: loss(w, part), weight) for part in x])
    torch.testing.assert_close(found, expected)
    y = linear(x[0], leaf := weight.clone().requires_grad_())
    many = torch.autograd.grad(y, leaf, torch.eye(30).view(30, 5, 6), is_grads_batched=True)[0]
    for grad, one in zip(many, torch.eye(30).view(30, 5, 6), strict=True):
        torch.testing.assert_close(grad, one.t() @ x[0])


def test_torch_computes_what_onednn_does_not(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = random(5, 7), random(6, 7)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype is torch.bfloat16
    for dtype in (torch.float64, torch.bfloat16):
        assert linear(x.to(dtype), weight.to(dtype)).dtype is dtype
    assert linear(x.to("meta"), weight.to("meta")).is_meta
    assert torch.export.export(Linear(7, 6), (x,)).module()(x).shape == (5, 6)
    with torch.backends.mkldnn.flags(enabled=False):
        linear(x, weight)
    monkeypatch.setattr(module, "SMALLEST", 5 * 7 * 6 + 1)
    linear(x, weight)
    assert not calls
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        linear(x, random(6, 8))
    with pytest.raises(RuntimeError):
        linear(x, weight, random(5))
    with pytest.raises(RuntimeError, match="same dtype"):
        linear(x, weight.double())


def test_an_exported_program_takes_any_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SMALLEST", 1000)
    layer = Linear(7, 6)
    rows = {"x": {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(layer, (random(2, 3, 7),), dynamic_shapes=rows).module()
    x = random(20, 30, 7)
    torch.testing.assert_close(program(x), layer(x))


def test_the_module_is_torchs() -> None:
    theirs = nn.Linear(7, 6)
    ours = Linear.sharing(theirs)
    assert ours.weight is theirs.weight
    assert ours.bias is theirs.bias
    assert Linear.sharing(nn.Linear(7, 6, bias=False)).bias is None
    x = random(2, 5, 7)
    model = nn.Sequential(copy.deepcopy(ours), nn.ReLU(inplace=True))
    torch.testing.assert_close(model(x), theirs(x).relu())
    assert torch.equal(torch.fx.symbolic_trace(model)(x), model(x))
    model.load_state_dict({"0.weight": theirs.weight, "0.bias": theirs.bias}, strict=True)
