"""torch.func, torch.fx and torch.jit over attention, entmax and the output loss, as over torch's own functions."""

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import entformer as ef
from entformer.models.fused_loss import output_loss
from entformer.nn.layers import EncoderLayer
from entformer.nn.normalizer_functions import TopK
from entformer.nn.positions import Rotary

from .tensors import normal

# ---- torch.func -------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernels")
def test_transforms_of_attention_compile() -> None:
    q, k, v, alpha = normal(2, 2, 4, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 3), torch.tensor([1.3, 1.7])

    def loss(*tensors: Tensor) -> Tensor:
        out = ef.attention(*tensors[:3], alpha=tensors[3])
        return out.square().sum()

    function = torch.func.grad(loss, argnums=(0, 1, 2, 3))
    torch.compiler.reset()
    compiled = torch.compile(function, backend="aot_eager")(q, k, v, alpha)
    torch.testing.assert_close(compiled, function(q, k, v, alpha), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", [1.0, 1.5])
def test_transforms_of_the_output_loss(alpha: float) -> None:
    hidden, weight = normal(6, 8).requires_grad_(), normal(11, 8).requires_grad_()
    target = torch.arange(6)
    sums = output_loss(hidden, weight, target, label_smoothing=0.1, alpha=alpha)
    right = torch.autograd.grad(sums.loss, (hidden, weight))

    def loss(h: Tensor, w: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        found = output_loss(h, w, target, label_smoothing=0.1, alpha=alpha)
        return found.loss, (found.nll, found.correct)

    grads, (nll, correct) = torch.func.grad(loss, argnums=(0, 1), has_aux=True)(hidden.detach(), weight.detach())
    torch.testing.assert_close(grads, right, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(nll, sums.nll)
    assert correct == sums.correct

    def of_one(w: Tensor, h: Tensor, y: Tensor) -> Tensor:
        return output_loss(h[None], w, y[None], label_smoothing=0.1, alpha=alpha).loss

    per_sample = torch.func.vmap(torch.func.grad(of_one), in_dims=(None, 0, 0))(weight.detach(), hidden.detach(), target)
    torch.testing.assert_close(per_sample.sum(0), right[1], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("kernels")
def test_the_support_under_vmap_gets_a_sentence() -> None:
    layer, x = ef.MultiheadAttention(16, 2, batch_first=True), normal(3, 2, 4, 16)
    q = normal(3, 1, 2, 4, 8)
    with pytest.raises(ef.ImplUnavailable, match=r"no fixed size under torch\.func\.vmap: use return_support=False"):
        torch.func.vmap(lambda t: ef.attention(t, t, t, return_support=True)[0])(q)  # type: ignore[index]
    mapped = torch.func.vmap(lambda t: layer(t, t, t, need_weights=False)[0])(x)
    torch.testing.assert_close(mapped, torch.stack([layer(t, t, t, need_weights=False)[0] for t in x]))


# ---- torch.fx ---------------------------------------------------------------------------------------------------------------


class Scores(nn.Module):
    """Calls the functions as a user's module does."""

    def forward(self, x: Tensor) -> Tensor:
        y = ef.attention(x, x, x, is_causal=True)
        return ef.entmax15(y, dim=1) + ef.normmax_bisect(y) + ef.log_entmax(y, 1.0).exp()


def test_functions_are_traced_as_calls() -> None:
    x = normal(2, 3, 4, 8)
    module = Scores()
    traced = torch.fx.symbolic_trace(module)
    assert torch.equal(traced(x), module(x))
    assert "attention" in traced.code


@pytest.mark.parametrize(
    ("module", "call"),
    [
        (ef.Entmax15(dim=1), lambda m, x: m(x)),
        (ef.NormmaxBisect(), lambda m, x: m(x)),
        (ef.BudgetBisect(), lambda m, x: m(x)),
        (ef.EntmaxAlpha(3), lambda m, x: m(x[None])),
        (ef.LearnedAlpha(16), lambda m, x: x * m()),
        (TopK(3), lambda m, x: m(x)),
        (ef.SSMaxScaling(4), lambda m, x: m(x, torch.ones(3, 7))),
        (ef.ASEntmaxScaling(16, 4), lambda m, x: m(x, torch.ones(3, 7))),
        (ef.RelaNorm(16), lambda m, x: m(x)),
        (Rotary(16), lambda m, x: m(x[None])),
        (ef.MultiheadAttention(16, 4, batch_first=True), lambda m, x: m(x, x, x, need_weights=False)[0]),
        (EncoderLayer(ef.MultiheadAttention(16, 4, batch_first=True), 32), lambda m, x: m(x)),
    ],
    ids=lambda given: type(given).__name__,
)
def test_modules_are_traced(module: nn.Module, call: Any) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> Tensor:
            return call(self.inner, x)

    traced, x = torch.fx.symbolic_trace(Model()), normal(3, 7, 16)
    if isinstance(module, ef.MultiheadAttention):  # recorded as a whole, as torch's is
        assert [node.target for node in traced.graph.nodes if node.op == "call_module"] == ["inner"]
    torch.testing.assert_close(traced.eval()(x), call(module.eval(), x))


# ---- torch.jit --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernels")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("kernels")
def test_traced_attention_computes_gradients_of_other_tensors() -> None:
    def function(q: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        found = ef.attention(q, q, q, alpha=alpha, return_stats=True)
        return found.output, found.stats.entropy

    def tensors() -> tuple[Tensor, Tensor]:
        return normal(1, 2, 4, 8).requires_grad_(), (1.2 + torch.rand(2)).requires_grad_()

    traced, other = torch.jit.trace(function, tensors(), check_trace=False), tensors()
    output, entropy = traced(*other)
    right, right_entropy = function(*other)
    torch.testing.assert_close((output, entropy), (right, right_entropy))
    gradients = [torch.autograd.grad(out.square().sum(), other) for out in (output, right)]
    torch.testing.assert_close(*gradients)


def test_traced_functions_can_be_saved() -> None:
    x = normal(1, 2, 4, 8)
    functions = [lambda t: ef.entmax(t), lambda t: ef.attention(t, t, t, torch.ones(4, 4, dtype=torch.bool).tril())]
    for function in functions:
        with torch.no_grad():
            traced = torch.jit.trace(function, (x,), check_trace=False)
            file = io.BytesIO()
            torch.jit.save(traced, file)
            file.seek(0)
            other = normal(1, 2, 4, 8) * 0.5
            torch.testing.assert_close(torch.jit.load(file)(other), function(other))
