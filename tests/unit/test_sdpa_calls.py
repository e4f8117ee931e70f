"""Calls written for scaled_dot_product_attention with the function exchanged: same shapes, layouts, masks and devices."""

import math
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import entformer as ef
from entformer.kernels import registry as choice
from entformer.kernels.attention import api

from .tensors import RecordTensors, normal, random

sdpa, entmax = F.scaled_dot_product_attention, ef.attention
softmax = partial(ef.attention, normalizer="softmax")
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 5e-6}  # sums of a few products of size 1 to 4 in float32


def count_calls(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[tuple[Any, ...]]:
    """The arguments of each call of a function from now on."""
    calls: list[tuple[Any, ...]] = []
    original = getattr(module, name)

    def counted(*given: Any, **options: Any) -> Any:
        calls.append(given)
        return original(*given, **options)

    monkeypatch.setattr(module, name, counted)
    return calls


@pytest.fixture
def fused_calls(monkeypatch: pytest.MonkeyPatch, kernels: None) -> list[tuple[Any, ...]]:
    return count_calls(monkeypatch, api.ops, "attention_with_gradient")


@pytest.fixture
def torch_calls(monkeypatch: pytest.MonkeyPatch, kernels: None) -> list[tuple[Any, ...]]:
    return count_calls(monkeypatch, F, "scaled_dot_product_attention")


# ---- the default device ---------------------------------------------------------------------------------------------------


def test_the_default_device_changes_nothing() -> None:
    torch.manual_seed(0)
    q, k, v = (normal(1, 2, n, 8) for n in (5, 6, 6))
    layer = ef.MultiheadAttention(16, 2, dropout=0.2, batch_first=True)
    x, scores, target = normal(2, 5, 16), normal(3, 7), torch.tensor([1, 2, 3])

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        found = ef.attention(q, k, v, dropout_p=0.3, return_support=True)
        dense = ef.attention(q, k, v, dropout_p=0.3, impl="reference")
        functions = ef.entmax_loss(scores, target), ef.log_entmax(scores), ef.budget_bisect(scores)
        return [found[0], *found[2], dense, *layer(x, x, x), *functions]  # type: ignore[list-item, misc]

    right = run()
    with torch.device("meta"):
        inside = run()
    for ours, theirs in zip(inside, right, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("windowed", [True, False])
def test_the_default_device_changes_no_decoding(windowed: bool) -> None:
    torch.manual_seed(0)
    config = ef.LMConfig(vocab_size=11, width=16, heads=2, hidden=16, layers=1, positions="alibi")
    model, prompt = ef.CausalLM(config).eval(), torch.tensor([[1, 2, 3]])
    right = model.generate(prompt, 5, windowed=windowed)
    with torch.device("meta"):
        inside = model.generate(prompt, 5, windowed=windowed)
    assert torch.equal(inside, right)


def test_meta_tensors_give_shapes() -> None:
    q, k, v = (torch.empty(2, 4, n, 8, device="meta", requires_grad=True) for n in (5, 7, 7))
    mask = torch.zeros(5, 7, device="meta")
    for how in ({}, {"attn_mask": mask}, {"attn_mask": mask == 0, "dropout_p": 0.1}, {"alpha": torch.ones(4, device="meta")}):
        out = entmax(q, k, v, **how)
        assert out.shape == (2, 4, 5, 8)
        assert out.device.type == "meta"
        assert torch.autograd.grad(out.sum(), q)[0].shape == q.shape
    with pytest.raises(ef.ImplUnavailable, match=r"no fixed size under a meta tensor: use return_support=False"):
        ef.attention(q, k, v, return_support=True)


# ---- masks ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [causal_upper_left, causal_lower_right])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (4, 7)])
def test_causal_biases_of_torch(bias: Any, queries: int, keys: int) -> None:
    q, k, v = normal(2, 3, queries, 8), normal(2, 3, keys, 8), normal(2, 3, keys, 6)
    mask = bias(queries, keys)
    torch.testing.assert_close(softmax(q, k, v, mask), sdpa(q, k, v, mask), **CLOSE)
    torch.testing.assert_close(softmax(q, k, v, attn_mask=mask, impl="reference"), sdpa(q, k, v, attn_mask=mask), **CLOSE)
    with pytest.raises(ef.ArgumentError, match="attn_mask is already causal: leave out is_causal"):
        entmax(q, k, v, mask, is_causal=True)
    with pytest.raises(ef.ArgumentError, match=f"made for {queries} queries and {keys} keys, but there are 3 and {keys}"):
        entmax(q[:, :, :3], k, v, mask)


def test_a_causal_bias_with_more_queries_than_keys_gives_rows_of_zeros() -> None:
    q, k, v = normal(1, 1, 5, 8), normal(1, 1, 3, 8), normal(1, 1, 3, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of NaN
        mask = causal_lower_right(5, 3)
    out = entmax(q, k, v, mask)
    assert (out[:, :, :2] == 0.0).all()
    assert out.isfinite().all()


HIDDEN = {
    "-inf": (torch.float32, -math.inf),
    "lowest float32": (torch.float32, torch.finfo(torch.float32).min),
    "lowest bfloat16 in float32": (torch.float32, torch.finfo(torch.bfloat16).min),
    "lowest bfloat16": (torch.bfloat16, torch.finfo(torch.bfloat16).min),
    "lowest float16": (torch.float16, torch.finfo(torch.float16).min),
    "lowest float64": (torch.float64, torch.finfo(torch.float64).min),
    "lowest float16 in float32": (torch.float32, torch.finfo(torch.float16).min),  # of a half-precision model
}


@pytest.mark.parametrize("hidden", HIDDEN)
def test_float_masks_of_zeros_are_boolean_masks(hidden: str, fused_calls: list[Any]) -> None:
    dtype, value = HIDDEN[hidden]
    inputs = normal(2, 3, 9, 8), normal(2, 3, 13, 8), normal(2, 3, 13, 8)
    q, k, v = (t.half() if hidden == "lowest float16 in float32" else t for t in inputs)
    allowed = (normal(2, 1, 9, 13) > -0.3).index_fill(2, torch.tensor([4]), False)  # one row has no key
    mask = torch.zeros(2, 1, 9, 13, dtype=dtype).masked_fill(~allowed, value)
    right = entmax(q, k, v, allowed)
    assert torch.equal(entmax(q, k, v, mask), right)
    assert len(fused_calls) == 2
    assert (right[:, :, 4] == 0.0).all()
    # A mask that is learned keeps its gradient: it is added, with the same result.
    close = CLOSE if q.dtype == torch.float32 else {"rtol": 1e-3, "atol": 1e-3}
    torch.testing.assert_close(entmax(q, k, v, mask.requires_grad_()), right, **close)
    assert len(fused_calls) == 3


@pytest.mark.parametrize("other", [1e-3, -65504.0, -1e9, math.nan])
def test_other_float_masks_are_added(other: float, fused_calls: list[Any]) -> None:
    q = normal(1, 2, 4, 8)
    mask = torch.zeros(4, 4)
    mask[0, 1], mask[0, 2] = other, -math.inf
    torch.testing.assert_close(softmax(q, q, q, mask), sdpa(q, q, q, mask), equal_nan=True, **CLOSE)
    assert len(fused_calls) == 1


def test_the_dense_path_warns_once_with_the_reason(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_already_said", set())
    q, mask = normal(1, 1, 3, 4), torch.ones(3, 3)
    with pytest.warns(ef.SlowPathWarning, match=r"materializes the scores \(L x L\): .* float64") as caught:
        entmax(q.double(), q.double(), q.double())
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        entmax(q.double(), q.double(), q.double())
        entmax(q, q, q, mask)
        entmax(q, q[:, :, :0], q[:, :, :0])  # nothing to hold in memory


def test_other_devices_compute_in_float32() -> None:
    """GPUs have float64 at a small part of their speed; a meta tensor stands for one."""
    with RecordTensors() as recorded:
        ef.entmax(torch.empty(10, 100, device="meta"), 1.3)
        q = torch.empty(1, 1, 100, 8, device="meta")
        ef.attention(q, q, q, alpha=1.3)
    assert torch.float64 not in {t.dtype for t in recorded.made if t.numel() >= 1000}


# ---- arguments ------------------------------------------------------------------------------------------------------------


def test_arguments_come_in_torchs_order() -> None:
    q, k, v = normal(2, 4, 5, 8), normal(2, 2, 5, 8), normal(2, 2, 5, 8)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    right = sdpa(q, k, v, mask, 0.0, False, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(softmax(q, k, v, mask, 0.0, False, 0.3, True), right, **CLOSE)
    right = sdpa(q, k, v, None, 0.0, True, enable_gqa=True)
    torch.testing.assert_close(softmax(q, k, v, None, 0.0, True, enable_gqa=True), right, **CLOSE)


def test_key_padding_mask_is_the_old_name_of_key_mask() -> None:
    q = normal(2, 3, 5, 8)
    allowed = torch.arange(5) < torch.tensor([[5], [3]])
    right = entmax(q, q, q, key_mask=allowed)
    torch.testing.assert_close(right, entmax(q, q, q, allowed[:, None, None, :]))
    with pytest.warns(FutureWarning, match=r"True = may attend, the opposite of torch\.nn\.MultiheadAttention") as caught:
        assert torch.equal(entmax(q, q, q, key_padding_mask=allowed), right)
    assert caught[0].filename == __file__


def test_everything_may_be_dropped() -> None:
    q, k, v = (normal(2, 3, n, 8).requires_grad_() for n in (5, 6, 6))
    torch.manual_seed(0)
    assert torch.equal(entmax(q, k, v, dropout_p=1.0), sdpa(q, k, v, dropout_p=1.0))
    for grad in torch.autograd.grad(entmax(q, k, v, dropout_p=1.0).sum(), (q, k, v)):
        assert (grad == 0.0).all()


def test_alphas_of_any_kind() -> None:
    q = normal(1, 2, 4, 8)
    assert torch.equal(entmax(q, q, q, alpha=np.float32(1.5)), entmax(q, q, q, alpha=1.5))
    assert torch.equal(entmax(q, q, q, alpha=torch.tensor([1, 2])), entmax(q, q, q, alpha=torch.tensor([1.0, 2.0])))
    out = entmax(q, q, q, alpha=torch.tensor([1.5, math.nan]))
    assert out[:, 0].isfinite().all()
    assert out[:, 1].isnan().all()


def test_the_largest_offsets_are_right() -> None:
    q = normal(1, 2, 4, 8)
    assert torch.equal(entmax(q, q, q, is_causal=True, causal_offset=2**30), entmax(q, q, q))
    assert (entmax(q, q, q, is_causal=True, causal_offset=-(2**30)) == 0.0).all()


# ---- shapes and layouts ---------------------------------------------------------------------------------------------------

BROADCAST: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "batch of key": ((3, 2, 5, 8), (1, 2, 7, 8), (1, 2, 7, 6)),
    "batch of query": ((1, 2, 5, 8), (3, 2, 7, 8), (3, 2, 7, 6)),
    "batch of value alone": ((3, 2, 5, 8), (3, 2, 7, 8), (1, 2, 7, 6)),
    "heads of key": ((3, 4, 5, 8), (3, 1, 7, 8), (3, 1, 7, 6)),
    "heads of query": ((3, 1, 5, 8), (3, 4, 7, 8), (3, 4, 7, 6)),
    "heads of value alone": ((3, 4, 5, 8), (3, 4, 7, 8), (3, 1, 7, 6)),
    "batch and heads": ((3, 1, 5, 8), (1, 4, 7, 8), (1, 4, 7, 6)),
    "rank of key": ((3, 2, 5, 8), (2, 7, 8), (2, 7, 6)),
    "rank of query": ((2, 5, 8), (3, 2, 7, 8), (3, 2, 7, 6)),
    "matrices": ((3, 2, 5, 8), (7, 8), (7, 6)),
    "five dimensions": ((3, 1, 2, 5, 8), (1, 4, 2, 7, 8), (4, 2, 7, 6)),
    "groups, other ones of value": ((2, 8, 5, 8), (2, 4, 7, 8), (2, 2, 7, 6)),
}


@pytest.mark.parametrize("shapes", BROADCAST)
def test_batch_heads_and_rank_broadcast(shapes: str) -> None:
    ours, theirs = ([normal(*shape).requires_grad_() for shape in BROADCAST[shapes]] for _ in range(2))
    grouped = "groups" in shapes
    out, right = softmax(*ours, enable_gqa=grouped), sdpa(*theirs, enable_gqa=grouped)
    assert out.shape == right.shape
    torch.testing.assert_close(out, right, **CLOSE)
    grad = normal(*out.shape)
    for one, other in zip(torch.autograd.grad(out, ours, grad), torch.autograd.grad(right, theirs, grad), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_the_output_lies_in_memory_as_the_query_does(impl: Any) -> None:
    """Merging heads after attention is a view, as models that call scaled_dot_product_attention expect."""
    q, k, v = (normal(2, 5, 4, 8).transpose(1, 2) for _ in range(3))
    assert sdpa(q, k, v).transpose(1, 2).is_contiguous()
    out = entmax(q, k, v, impl=impl)
    assert out.transpose(1, 2).is_contiguous()
    assert out.transpose(1, 2).view(2, 5, 32).shape == (2, 5, 32)
    assert torch.equal(out, entmax(q.contiguous(), k, v, impl=impl))
    assert entmax(q.contiguous(), k, v, impl=impl).is_contiguous()


@pytest.mark.parametrize("lengths", [(5, 5), (40, 200)])
@pytest.mark.parametrize("size", [8, 32])
def test_gradients_lie_in_memory_as_their_tensors_do(lengths: tuple[int, int], size: int) -> None:
    """So that splitting heads, a view in forward, copies nothing in backward; whatever the kernels allocate, pad or add up."""
    queries, keys = lengths
    whole = [normal(2, length, 4, size) for length in (queries, keys, keys)]
    views = [t.transpose(1, 2).requires_grad_() for t in whole]
    side_by_side = torch.autograd.grad(entmax(*views).square().sum(), views)
    copies = [t.detach().contiguous().requires_grad_() for t in views]
    apart = torch.autograd.grad(entmax(*copies).square().sum(), copies)
    for one, other in zip(side_by_side, apart, strict=True):
        assert one.transpose(1, 2).is_contiguous()
        assert other.is_contiguous()
        assert torch.equal(one, other)


# ---- softmax: torch's kernel where it computes the same, ours elsewhere ------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_output_and_gradients_agree(causal: bool, torch_calls: list[Any]) -> None:
    *inputs, grad = random(4, 2, 2, 70, 16)
    found = []
    for impl in ("auto", "cpu"):
        leaves = [t.clone().requires_grad_() for t in inputs]
        out = entmax(*leaves, alpha=1.0, is_causal=causal, scale=0.3, impl=impl)
        found.append((out.detach(), *torch.autograd.grad(out, leaves, grad)))
    assert len(torch_calls) == 1
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "how",
    [
        {"alpha": 1.0001},
        {"alpha": torch.ones(2)},
        {"dropout_p": 0.1},
        {"key_mask": torch.ones(2, 70, dtype=torch.bool)},
        {"attn_mask": torch.zeros(70, 70)},
        {"is_causal": True, "causal_offset": 1},
        {"window": (3, 3)},
        {"sinks": torch.zeros(2)},
        {"softcap": 3.0},
        {"alibi_slopes": torch.ones(2)},
        {"return_stats": True},
        {"normalizer": "rela"},
        {"normalizer": "sigmoid"},
        {"impl": "cpu"},
    ],
)
def test_what_torch_does_not_compute_the_same_way(how: dict[str, Any], torch_calls: list[Any]) -> None:
    q, k, v, _ = random(4, 2, 2, 70, 16)
    entmax(q, k, v, **{"alpha": 1.0, **how})
    assert torch_calls == []


@pytest.mark.parametrize(
    ("length", "causal", "used"), [(3, False, 0), (4, False, 1), (127, True, 1), (128, True, 0), (128, False, 1)]
)
def test_lengths_at_which_ours_is_faster(length: int, causal: bool, used: int, torch_calls: list[Any]) -> None:
    q, k, v, _ = random(4, 2, 2, length, 16)
    softmax(q, k, v, is_causal=causal)
    assert len(torch_calls) == used


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_later_keys_hold_does_not_reach_earlier_queries(value: float, torch_calls: list[Any]) -> None:
    q, k, v, _ = random(4, 2, 2, 20, 16)
    clean = entmax(q, k, v, alpha=1.0, is_causal=True)
    k[:, :, 15], v[:, :, 15] = value, value
    out = entmax(q, k, v, alpha=1.0, is_causal=True)
    torch.testing.assert_close(out[:, :, :15], clean[:, :, :15], rtol=1e-4, atol=1e-5)
    assert out[:, :, 15:].isnan().all()
    assert len(torch_calls) == 1  # the clean call alone
