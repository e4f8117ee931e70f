"""The operators of attention under torch: schemas, tracing, compilation, export, and what autograd does with a node."""

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from entformer.errors import ImplUnavailable
from entformer.kernels.attention import ops
from entformer.kernels.attention import reference_ops as reference
from entformer.kernels.attention.api import Attention, attention
from entformer.kernels.entmax.api import entmax
from entformer.kernels.registry import Impl

pytestmark = pytest.mark.usefixtures("kernels")

NAMES = ("query", "key", "value", "alpha")


def leaves(dtype: torch.dtype = torch.float32, keys: int = 9) -> list[Tensor]:
    """query, key, value and alpha per head, four heads over two, each requiring a gradient."""
    seed = torch.Generator().manual_seed(keys)
    shapes = ((2, 4, 5, 8), (2, 2, keys, 8), (2, 2, keys, 6))
    tensors = [torch.randn(shape, generator=seed).to(dtype).requires_grad_() for shape in shapes]
    return [*tensors, torch.tensor([1.0, 1.3, 1.5, 2.0], requires_grad=True)]


def run(tensors: list[Tensor], **how: Any) -> Tensor:
    query, key, value, alpha = tensors
    out = attention(query, key, value, alpha=alpha, enable_gqa=True, impl="cpu", **how)
    assert isinstance(out, Tensor)
    return out


def grad_like(out: Tensor) -> Tensor:
    return torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)


HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "masked": {
        "attn_mask": (torch.arange(9) != 4).expand(5, 9),
        "key_mask": torch.arange(9) < torch.tensor([[9], [6]]),
        "is_causal": True,
        "causal_offset": 3,
        "alibi_slopes": torch.tensor([0.1, 0.2, 0.3, 0.4]),
    },
}


def forward_arguments(how: str, dtype: torch.dtype, rela: bool) -> tuple[Any, ...]:
    """Arguments of `ops.attention`; tensors require gradients."""
    q, k, v, alpha = leaves(dtype)
    masks: tuple[Tensor | None, ...] = (None, None, None)
    if how == "masked":
        given = HOW[how]
        slopes = given["alibi_slopes"].expand(2, 4).contiguous()
        masks = (given["attn_mask"].expand(2, 4, 5, 9), given["key_mask"].expand(2, 9), slopes)
    row_alpha = alpha.detach().double().expand(2, 4).clone().requires_grad_()
    normalizer = "relu" if rela else "entmax"
    dropout_p = 0.2 if how == "masked" else 0.0
    return (q, k, v, row_alpha, *masks, normalizer, 0.35, how == "masked", 3, dropout_p, torch.tensor(7), how == "masked")


def other_arguments(forward: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Arguments of `ops.attention_backward` and `ops.attention_support`, for the result of these arguments."""
    out, row_max, threshold, support_size, _entropy, reserve = ops.attention(*forward)
    tensors, how, seed = forward[:7], forward[7:12], forward[12]
    state = (row_max, threshold, support_size, reserve)
    crow = torch.nn.functional.pad(support_size.flatten().cumsum(0), (1, 0))
    q, k, _, row_alpha, *masks = tensors
    backward = (grad_like(out), *tensors, *state, *how, seed, how[0] != "relu")
    return backward, (q, k, row_alpha, *masks, row_max, threshold, crow, *how[:4])


@pytest.mark.parametrize(
    ("how", "rela", "dtype"),
    [("plain", False, torch.float32), ("masked", False, torch.bfloat16), ("masked", True, torch.float32)],
)
def test_opcheck(how: str, rela: bool, dtype: torch.dtype) -> None:
    arguments = forward_arguments(how, dtype, rela)
    torch.library.opcheck(ops.attention, arguments)
    # Differentiating a gradient is refused, so its operator is checked on tensors that need none.
    backward, support = other_arguments(tuple(t.detach() if isinstance(t, Tensor) else t for t in arguments))
    torch.library.opcheck(ops.attention_backward, backward)
    torch.library.opcheck(ops.attention_support, support)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("rela", [False, True])
@torch.no_grad()
def test_operators_without_kernels(how: str, rela: bool) -> None:
    """Saved programs fall back to the dense ones: the same shapes, dtypes and numbers."""
    arguments = forward_arguments(how, torch.float32, rela)
    backward, support = other_arguments(arguments)
    right, found = ops.attention(*arguments)[:5], reference.forward(*arguments)
    assert [(t.shape, t.dtype) for t in found] == [(t.shape, t.dtype) for t in right]
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close((found[0], *found[3:]), (right[0], *right[3:]), **close)
    if not rela:  # which has no threshold
        torch.testing.assert_close(found[1] + found[2], right[1] + right[2], **close)
    torch.testing.assert_close(reference.backward(*backward), ops.attention_backward(*backward), **close)
    torch.testing.assert_close(reference.support(*support), ops.attention_support(*support), **close)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("keys", [1, 16, 17, 128, 1000, 1500, 2500])
def test_outputs_have_the_shapes_of_the_fake_kernel(keys: int, packed: bool) -> None:
    """The reserve depends on the number of keys; packed sequences need as much as the shortest of them."""
    q, k = torch.randn(1, 1, 3, 8), torch.randn(1, 1, keys, 8)
    begins = torch.tensor([0, 1, 3]), torch.tensor([0, keys // 2, keys])
    features = (None, None, *(t.int() for t in begins)) if packed else ()
    how = (torch.ones(1, 1, dtype=torch.float64), None, None, None, "entmax", 1.0, False, 0, 0.0)
    arguments = (q, k, k, *how, torch.zeros((), dtype=torch.int64), False, *features)
    real = ops.attention(*arguments)
    with FakeTensorMode() as mode:
        fake = ops.attention(*(mode.from_tensor(t) if isinstance(t, Tensor) else t for t in arguments))
    assert [t.shape for t in real] == [t.shape for t in fake]


@pytest.mark.parametrize(
    ("alpha", "queries", "keys", "slopes", "scale"),
    [
        (1.0, 150, 170, None, 3.0),
        (1.3, 150, 170, (0.5, 0.0), 3.0),
        (1.3, 70, 3001, None, 1.0),  # supports of hundreds: columns alone are saved
        (1.5, 3, 170, (0.5, 0.0), 3.0),
        (1.5, 70, 3001, (0.01, 0.0), 1.0),
        (1.5, 150, 400, None, 1.0),
        (2.0, 70, 3001, None, 0.3),
        (2.5, 150, 170, None, 3.0),
    ],
)
def test_the_gradient_does_not_depend_on_the_reserve(
    alpha: float, queries: int, keys: int, slopes: tuple[float, ...] | None, scale: float
) -> None:
    """Weights and columns saved, columns alone (their scores are computed again), or nothing (the block is computed again)."""
    generator = torch.Generator().manual_seed(queries)
    batch, heads, size = 1, 2, 24
    q, k, v = (torch.randn(batch, heads, n, size, generator=generator) for n in (queries, keys, keys))
    alphas = torch.full((batch, heads), alpha, dtype=torch.float64)
    bias = None if slopes is None else torch.tensor([slopes])
    how, seed = ("entmax", scale / size**0.5, True, keys - queries, 0.0), torch.zeros(1, dtype=torch.int64)
    out, *state, _entropy, reserve = ops.attention(q, k, v, alphas, None, None, bias, *how, seed, False)
    found = []
    for saved in (reserve, reserve[..., :0]):
        inputs = (grad_like(out), q, k, v, alphas, None, None, bias, *state, saved, *how, seed, True)
        found.append(ops.attention_backward(*inputs))
    for index, (with_reserve, without) in enumerate(zip(*found, strict=True)):
        if without.numel():  # else it was not requested
            tolerance = 5e-6 if index == 3 else 2e-6  # to alpha: terms of all pairs cancel; each way is off by 2e-6 (rms)
            torch.testing.assert_close(with_reserve, without, rtol=0.0, atol=tolerance * without.abs().max().item())


class Heads(nn.Module):
    """Projections around attention whose alphas are learned."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(16, 48)
        self.raw_alpha = nn.Parameter(torch.tensor([-3.0, 0.0, 0.5, 2.0]))

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:  # x (B, L, 16)
        q, k, v = self.project(x).unflatten(-1, (12, 4)).transpose(1, 2).chunk(3, 1)
        alpha = 1.0 + torch.sigmoid(self.raw_alpha)
        out = attention(q, k, v, alpha=alpha, key_mask=padding, is_causal=True, impl="cpu")
        assert isinstance(out, Tensor)
        return entmax(out.transpose(1, 2).flatten(-2), 1.3, impl="cpu")


def heads_input(length: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(2, length, 16, generator=torch.Generator().manual_seed(length))
    return x, torch.arange(length) < torch.tensor([[length - 1], [length]])


def outcome(module: Any, parameters: list[nn.Parameter], *inputs: Tensor) -> list[Tensor]:
    out = module(*inputs)
    return [out.detach(), *torch.autograd.grad(out, parameters, grad_like(out))]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled_in_one_graph(backend: str) -> None:
    module = Heads()
    torch.compiler.reset()
    compiled = torch.compile(module, fullgraph=True, backend=backend)
    parameters = list(module.parameters())
    for length in (7, 12) if backend == "aot_eager" else (7,):  # a second length makes the sizes symbolic
        inputs = heads_input(length)
        for ours, right in zip(outcome(compiled, parameters, *inputs), outcome(module, parameters, *inputs), strict=True):
            torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5)  # products may be added in another order


def test_compiled_dropout_can_be_repeated() -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda *t: run(list(t), dropout_p=0.5), fullgraph=True, backend="aot_eager")
    outs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        outs.append(compiled(*leaves()))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


@pytest.mark.parametrize("how", HOW)
def test_saved_tensors_may_live_elsewhere(how: str) -> None:
    plain, moved, packed = leaves(), leaves(), leaves()
    right = torch.autograd.grad(run(plain, **HOW[how]), plain, grad_like(run(plain)))
    with torch.autograd.graph.save_on_cpu():
        out = run(moved, **HOW[how])
    for ours, theirs in zip(torch.autograd.grad(out, moved, grad_like(out)), right, strict=True):
        assert torch.equal(ours, theirs)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), copy.deepcopy):
        out = run(packed, **HOW[how])
    for ours, theirs in zip(torch.autograd.grad(out, packed, grad_like(out)), right, strict=True):
        assert torch.equal(ours, theirs)


def test_checkpointing_draws_the_same_dropout() -> None:
    plain, again = leaves(), leaves()
    torch.manual_seed(3)
    out = run(plain, dropout_p=0.5)
    torch.manual_seed(3)
    recomputed = torch.utils.checkpoint.checkpoint(lambda *t: run(list(t), dropout_p=0.5), *again, use_reentrant=False)
    assert torch.equal(out, recomputed)
    grad = grad_like(out)
    for ours, right in zip(torch.autograd.grad(recomputed, again, grad), torch.autograd.grad(out, plain, grad), strict=True):
        assert torch.equal(ours, right)


def test_gradients_accumulate() -> None:
    tensors = leaves()
    out = run(tensors)
    once = torch.autograd.grad(out, tensors, grad_like(out), retain_graph=True)
    out.backward(grad_like(out), retain_graph=True)
    out.backward(grad_like(out))
    for tensor, grad in zip(tensors, once, strict=True):
        assert tensor.grad is not None
        assert torch.equal(tensor.grad, 2.0 * grad)
    with pytest.raises(RuntimeError, match="second time"):
        out.backward(grad_like(out))


def test_inputs_changed_in_place_are_noticed() -> None:
    tensors = leaves()
    scaled = [t * 1.0 for t in tensors]
    out = run(scaled)
    scaled[1].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_second_derivatives_are_refused() -> None:
    tensors = leaves()
    (grad,) = torch.autograd.grad(run(tensors).square().sum(), tensors[:1], create_graph=True)
    with pytest.raises(ImplUnavailable, match=r"no second derivatives; use impl='reference' where you need them\."):
        grad.square().sum().backward()


@pytest.mark.parametrize("wanted", [c for n in range(1, 5) for c in itertools.combinations(NAMES, n)], ids="+".join)
def test_any_part_of_the_gradients(wanted: tuple[str, ...]) -> None:
    """What nobody asks for changes nothing; the three gradients to tensors keep their bits when alpha's is asked for too."""
    tensors = leaves()
    all_grads = dict(zip(NAMES, torch.autograd.grad(run(tensors), tensors, grad_like(run(tensors))), strict=True))
    part = [t.detach().requires_grad_(name in wanted) for name, t in zip(NAMES, tensors, strict=True)]
    out = run(part)
    asked = [t for t in part if t.requires_grad]
    for name, grad in zip([n for n in NAMES if n in wanted], torch.autograd.grad(out, asked, grad_like(out)), strict=True):
        # Slopes by square root and by power differ in their last bits.
        torch.testing.assert_close(grad, all_grads[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("impl", ["cpu", "reference"])
@pytest.mark.parametrize("randomness", ["same", "different"])
def test_vmap_draws_dropout_as_asked(randomness: str, impl: Impl) -> None:
    """Same: each sample is dropped as if it were alone after the same seed. Different: every sample in its own way."""
    query, key, value, alpha = (t.detach() for t in leaves())
    batches = torch.stack([query, query])

    def dropped(query: Tensor) -> Tensor:
        out = attention(query, key, value, alpha=alpha, enable_gqa=True, dropout_p=0.5, impl=impl)
        assert isinstance(out, Tensor)
        return out

    torch.manual_seed(3)
    mapped = torch.func.vmap(dropped, randomness=randomness)(batches)
    torch.manual_seed(3)
    alone = dropped(query)
    assert torch.equal(mapped[0], mapped[1]) == (randomness == "same")
    if randomness == "same":
        torch.testing.assert_close(mapped[0], alone)
        torch.manual_seed(3)
        jacobian = torch.func.vmap(torch.func.grad(lambda q: dropped(q).square().sum()), randomness="same")(batches)
        torch.manual_seed(3)
        (right,) = torch.autograd.grad(dropped(wanted := query.clone().requires_grad_()).square().sum(), wanted)
        torch.testing.assert_close(jacobian, torch.stack([right, right]))


def test_jacobians_of_one_sequence() -> None:
    """With a batch of one, what the gradient saved arrives expanded, with strides of zero."""
    query, key, value = torch.randn(3, 1, 2, 4, 8, generator=torch.Generator().manual_seed(0)).unbind()

    def run_by(impl: Impl) -> Tensor:
        def one(query: Tensor) -> Tensor:
            out = attention(query, key, value, alpha=1.5, impl=impl)
            assert isinstance(out, Tensor)
            return out

        jacobian: Tensor = torch.func.jacrev(one)(query)
        return jacobian

    torch.testing.assert_close(run_by("cpu"), run_by("reference"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0, 2.5, 3.5])
@pytest.mark.parametrize("keys", [9, 300])
def test_statistics_are_those_before_dropout(keys: int, alpha: float) -> None:
    query, key, value, _ = (t.detach() for t in leaves(keys=keys))
    answers = []
    for dropout in (0.0, 0.7):
        answer = attention(query, key, value, alpha=alpha, enable_gqa=True, dropout_p=dropout, return_stats=True, impl="cpu")
        assert isinstance(answer, Attention)
        assert answer.stats is not None
        answers.append(answer.stats)
    for plain, dropped in zip(*answers, strict=True):
        assert torch.equal(plain, dropped)


@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0)])
def test_heads_of_size_zero(sizes: tuple[int, int]) -> None:
    tensors = [torch.randn(1, 2, 3, size, requires_grad=True) for size in (sizes[0], *sizes)]
    right = torch.nn.functional.scaled_dot_product_attention(*tensors)
    out = attention(*tensors, alpha=1.0)
    assert isinstance(out, Tensor)
    torch.testing.assert_close(out, right)
    for ours, theirs in zip(torch.autograd.grad(out.sum(), tensors), torch.autograd.grad(right.sum(), tensors), strict=True):
        torch.testing.assert_close(ours, theirs)
