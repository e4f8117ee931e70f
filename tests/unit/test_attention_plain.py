"""Calls without options take a shorter way (`kernels/attention/plain.py`), which gives the same and leaves all others alone."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError, ImplUnavailable
from entformer.kernels import native
from entformer.kernels.attention import api, ops, plain, reference_ops
from entformer.kernels.attention.api import attention

ALPHAS = [1.3, 1.5, torch.tensor([1.0, 1.2, 1.7]), torch.tensor([1.1, 1.5, 2.0], dtype=torch.float64)]
SOFTMAX = 1.0  # by torch's own kernel, in float32 without a mask
MASK = torch.arange(7) < torch.tensor([[7], [4]])


@pytest.fixture(autouse=True)
def _kernels() -> None:
    if reason := native.load():
        pytest.skip(f"the short way needs the kernels: {reason}")


def run(inputs: tuple[Tensor, ...], alpha: Any, **options: Any) -> tuple[Tensor, ...]:
    q, k, v = (t.detach().requires_grad_() for t in inputs)
    learned = [alpha.detach().requires_grad_()] if isinstance(alpha, Tensor) else []
    out = attention(q, k, v, alpha=learned[0] if learned else alpha, **options)
    assert isinstance(out, Tensor)
    return out, *torch.autograd.grad(out, [q, k, v, *learned], torch.ones_like(out))


@pytest.mark.parametrize("alpha", [*ALPHAS, SOFTMAX], ids=str)
@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"scale": 0.3}, {"key_mask": MASK}, {"key_mask": MASK, "is_causal": True}], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_short_way_gives_what_the_general_one_does(
    monkeypatch: pytest.MonkeyPatch, alpha: Any, options: dict[str, Any], dtype: torch.dtype
) -> None:
    by_torch = alpha is SOFTMAX
    if by_torch and ("key_mask" in options or dtype is not torch.float32):
        pytest.skip("left to the general way")
    inputs = tuple(torch.randn(2, 7, 3, size, dtype=dtype).transpose(1, 2) for size in (16, 16, 16 if by_torch else 5))
    taken: list[bool] = []

    def recorded(*arguments: Any) -> Tensor | None:
        found = plain.plain_attention(*arguments)
        taken.append(found is not None)
        return found

    monkeypatch.setattr(api, "plain_attention", recorded)
    short = run(inputs, alpha, **options)
    monkeypatch.setattr(api, "plain_attention", lambda *_: None)
    general = run(inputs, alpha, **options)
    assert taken == [True]
    for ours, expected in zip(short, general, strict=True):
        assert ours.dtype == expected.dtype
        assert ours.stride() == expected.stride()
        torch.testing.assert_close(ours, expected, rtol=0, atol=0)


def test_the_short_way_takes_parameters_and_needs_no_gradient() -> None:
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    with torch.no_grad():
        assert plain.plain_attention(q, k, v, False, None, nn.Parameter(torch.tensor([1.2, 1.4])), None) is not None
    with torch.inference_mode():
        assert plain.plain_attention(q, k, v, False, None, 1.4, None) is not None
    found = attention(q, k, v, alpha=torch.tensor([1.2, 1.4]))
    assert isinstance(found, Tensor)
    assert not found.requires_grad


OTHER_CALLS: dict[str, dict[str, Any]] = {
    "alpha below 1": {"alpha": torch.tensor([0.9, 1.2])},
    "one alpha for two heads": {"alpha": torch.tensor([1.2])},
    "three alphas": {"alpha": torch.tensor([1.2, 1.3, 1.4])},
    "alpha with a batch": {"alpha": torch.tensor([[1.2, 1.3]])},
    "integer alphas": {"alpha": torch.tensor([1, 2])},
    "softmax with a mask": {"alpha": 1.0, "key_mask": torch.ones(1, 5, dtype=torch.bool)},
    "softmax of an infinite value": {"alpha": 1.0, "value": torch.full((1, 2, 5, 4), math.inf)},
    "softmax of sizes that torch's kernel does not take": {"alpha": 1.0, "value": torch.randn(1, 2, 5, 3)},
    "an integer": {"alpha": 2},
    "NaN": {"alpha": float("nan")},
    "a tensor with NaN": {"alpha": torch.tensor([float("nan"), 0.5])},
    "an integer as scale": {"scale": 1},
    "no batch": {"query": torch.randn(2, 5, 4)},
    "fewer key heads": {"key": torch.randn(1, 1, 5, 4)},
    "fewer values": {"value": torch.randn(1, 2, 4, 4)},
    "float64": {"query": torch.randn(1, 2, 5, 4, dtype=torch.float64)},
    "meta": {"query": torch.randn(1, 2, 5, 4, device="meta")},
    "sparse": {"query": torch.randn(1, 2, 5, 4).to_sparse()},
    "an integer mask": {"key_mask": torch.ones(1, 5, dtype=torch.int64)},
    "a mask without a batch": {"key_mask": torch.ones(5, dtype=torch.bool)},
    "a mask of more keys": {"key_mask": torch.ones(1, 6, dtype=torch.bool)},
    "a mask on meta": {"key_mask": torch.ones(1, 5, dtype=torch.bool, device="meta")},
    "a list as mask": {"key_mask": [True] * 5},
    "no keys": {"key": torch.randn(1, 2, 0, 4), "value": torch.randn(1, 2, 0, 4)},
}


@pytest.mark.parametrize("kind", OTHER_CALLS)
def test_every_other_call_is_left_to_the_general_way(kind: str) -> None:
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    call: dict[str, Any] = {"query": q, "key": k, "value": v, "is_causal": False, "scale": None, "alpha": 1.4, "key_mask": None}
    call |= OTHER_CALLS[kind]
    assert plain.plain_attention(**call) is None


def test_mistakes_are_described_as_before() -> None:
    q = torch.randn(1, 2, 5, 4)
    with pytest.raises(ArgumentError, match=r"the smallest given is 0\.9"):
        attention(q, q, q, alpha=torch.tensor([0.9, 1.2]))
    with pytest.raises(ArgumentError, match="dropout_p must be a number, not bool"):
        attention(q, q, q, dropout_p=False)
    with pytest.raises(ArgumentError, match=r"key_mask must have shape \(1, 5\), not \(1, 4\)"):
        attention(q, q, q, key_mask=torch.ones(1, 4, dtype=torch.bool))
    with pytest.raises(ArgumentError, match="key_mask must be a boolean tensor"):
        attention(q, q, q, key_mask=torch.ones(1, 5))


@pytest.mark.parametrize("alpha", ALPHAS[1:3], ids=str)
def test_a_second_derivative_is_refused_and_gradients_of_a_batch_are_those_one_by_one(alpha: Any) -> None:
    q = torch.randn(2, 3, 7, 4, requires_grad=True)
    learned = alpha.clone().requires_grad_() if isinstance(alpha, Tensor) else alpha
    inputs = [q, learned] if isinstance(learned, Tensor) else [q]
    out = attention(q, q, q, alpha=learned, key_mask=MASK)
    assert isinstance(out, Tensor)
    first = torch.autograd.grad(out, inputs, torch.randn_like(out), create_graph=True)
    with pytest.raises(ImplUnavailable, match="no second derivatives"):
        first[0].sum().backward(retain_graph=True)
    grads = torch.randn(3, *out.shape)
    together = torch.autograd.grad(out, inputs, grads, is_grads_batched=True, retain_graph=True)
    alone = [torch.autograd.grad(out, inputs, grad, retain_graph=True) for grad in grads]
    for of_all, *of_each in zip(together, *alone, strict=True):
        torch.testing.assert_close(of_all, torch.stack(of_each))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_operators_take_one_alpha_per_head_for_all_batches(dtype: torch.dtype) -> None:
    """Its gradient has its shape and dtype, with the kernels and without them, and under vmap."""
    q, k, v, grad = (torch.randn(3, 2, 6, 4) for _ in range(4))
    alpha = torch.tensor([1.2, 1.6], dtype=dtype)
    wide = alpha.double().expand(3, 2)
    how = ("entmax", 0.5, False, 0, 0.0, torch.zeros((), dtype=torch.int64))

    def of(rows: Tensor, without_kernels: bool) -> tuple[Tensor, Tensor]:
        forward, backward = (
            (ops._reference_forward, reference_ops.backward) if without_kernels else (ops.attention, ops.attention_backward)
        )
        output, row_max, threshold, support_size, _, reserve = forward(q, k, v, rows, None, None, None, *how, False)
        state = (row_max, threshold, support_size, reserve)
        return output, backward(grad, q, k, v, rows, None, None, None, *state, *how, True)[3]

    for without_kernels in (False, True):
        (output, of_alpha), (expected, of_wide) = of(alpha, without_kernels), of(wide, without_kernels)
        assert of_alpha.shape == (2,)
        assert of_alpha.dtype == dtype
        torch.testing.assert_close(output, expected)
        torch.testing.assert_close(of_alpha, of_wide.sum(0).to(dtype))
    mapped = torch.func.vmap(lambda one: ops.attention(one, k, v, alpha, None, None, None, *how, False)[0])(q[None])
    torch.testing.assert_close(mapped[0], of(alpha, False)[0])
