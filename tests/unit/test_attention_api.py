"""`entformer.attention`: invalid arguments and their messages, and agreement with scaled_dot_product_attention."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as torch_attention

from entformer.errors import ArgumentError, ImplUnavailable
from entformer.kernels import native
from entformer.kernels.attention.api import attention
from entformer.kernels.registry import Impl

from .tensors import normal


def good() -> dict[str, Any]:
    return {"query": normal(2, 4, 5, 8), "key": normal(2, 4, 7, 8), "value": normal(2, 4, 7, 6)}


CU_Q, CU_K = torch.tensor([0, 3, 5], dtype=torch.int32), torch.tensor([0, 4, 7], dtype=torch.int32)
BAD: list[tuple[dict[str, Any], str]] = [
    ({"dropout_p": 1.1}, r"dropout_p=1.1 must be at least 0 and at most 1\."),
    ({"dropout_p": -0.1}, r"dropout_p=-0.1 must be at least 0 and at most 1\."),
    ({"dropout_p": math.nan}, r"dropout_p=nan must be at least 0 and at most 1\."),
    ({"causal_offset": 2**63 - 1, "is_causal": True}, r"causal_offset=9223372036854775807 is out of range"),
    ({"causal_offset": -(2**63), "is_causal": True}, r"causal_offset=-9223372036854775808 is out of range"),
    ({"causal_offset": 0.5}, r"causal_offset must be an integer, not float\."),
    (
        {"scale": torch.tensor(0.3)},
        r"scale must be a number, not a tensor.*attention\(query \* scale, key, value, scale=1\.0\)\.",
    ),
    (
        {"query": torch.ones(2, 4, 5, 8, dtype=torch.long)},
        r"query must be a floating-point tensor \(\.\.\., heads, length, size\)",
    ),
    ({"key": [1.0, 2.0]}, r"key must be a floating-point tensor .*, not list; convert it with torch\.as_tensor\(key\)\."),
    ({"query": np.ones((2, 4, 5, 8))}, r"query must be .*, not ndarray; convert it with torch\.as_tensor\(query\)\."),
    ({"value": torch.ones(6)}, r"value must be a floating-point tensor"),
    ({"key": torch.ones(3, 7, 8)}, r"shapes do not fit: .*key \(3, 7, 8\).*equally many heads\."),
    ({"key": torch.ones(3, 7, 8), "value": torch.ones(3, 7, 6)}, r"4 heads and key 3: they must have equally many heads\."),
    ({"value": torch.ones(2, 4, 7, 6, device="meta")}, r"query is on cpu and value on meta; move one of them\."),
    ({"key": normal(2, 4, 7, 8).double()}, r"must have one dtype, not torch.float32, torch.float64 and torch.float32\."),
    ({"key": normal(2, 4, 7, 9)}, r"shapes do not fit: query \(2, 4, 5, 8\), key \(2, 4, 7, 9\), value \(2, 4, 7, 6\);"),
    ({"key": normal(2, 4, 7, 9)}, r"query and key must have the same size in the last dimension, not 8 and 9\."),
    ({"value": normal(2, 4, 8, 6)}, r"; key and value must have the same length, dimension -2, not 7 and 8\."),
    ({"query": normal(3, 4, 5, 8)}, r"shapes do not fit: query \(3, 4, 5, 8\).*; they differ in batch size\."),
    (
        {"query": normal(2, 5, 7, 8)},
        r"query has 5 heads and key 4: .* many heads; the layout is \(batch, heads, length, size\)\.",
    ),
    ({"query": normal(2, 5, 5, 8)}, r"query has 5 heads and key 4: they must have equally many heads\."),
    ({"value": normal(2, 2, 7, 6)}, r"shapes do not fit"),
    ({"query": normal(2, 8, 5, 8)}, r"query has 8 heads and key 4: set enable_gqa=True to share key heads\."),
    (
        {"query": normal(2, 6, 5, 8), "enable_gqa": True},
        r"query has 6 heads and key 4: the first must be a multiple of the second\.",
    ),
    ({"normalizer": "sofmax"}, r"normalizer='sofmax' is not known; choose one of softmax, entmax15, sparsemax, entmax, rela"),
    ({"alpha": 0.9}, r"alpha=0.9 must be a finite number of at least 1 in attention; 1 is softmax\."),
    ({"alpha": math.nan}, r"alpha=nan must be a finite number"),
    ({"alpha": math.inf}, r"alpha=inf must be a finite number"),
    ({"alpha": torch.tensor([True, True, True, True])}, r"alpha must be a floating-point or integer tensor or a number, not"),
    ({"alpha": torch.tensor([1.5, 1.5, math.inf, 1.5])}, r"alpha must be finite, but the tensor given has infinite values\."),
    ({"alpha": torch.tensor(-math.inf)}, r"alpha must be finite"),
    ({"alpha": torch.full((4,), 1.5, device="meta")}, r"alpha is on meta but the scores are on cpu; move one of them\."),
    ({"alpha": torch.tensor([1.5, 1.5, 0.5, 1.5])}, r"alpha must be at least 1 in attention, the smallest given is 0\.5;"),
    ({"alpha": torch.full((3,), 1.5)}, r"alpha must have shape \(4,\) or \(2, 4\), one value per head; it has \(3,\)\."),
    ({"alpha": torch.full((4, 2), 1.5)}, r"alpha must have shape \(4,\) or \(2, 4\), one value per head; it has \(4, 2\)\."),
    ({"alpha": torch.full((2, 4, 1), 1.5)}, r"alpha must have shape .* it has \(2, 4, 1\)\."),
    ({"alibi_slopes": torch.ones(5)}, r"alibi_slopes must have shape \(4,\) or \(2, 4\), one value per head; it has \(5,\)\."),
    ({"attn_mask": torch.ones(5, 6, dtype=torch.bool)}, r"attn_mask of shape \(5, 6\) does not broadcast to \(2, 4, 5, 7\)\."),
    (
        {"attn_mask": torch.ones(5, 7, dtype=torch.uint8)},
        r"attn_mask must be boolean .* or floating point .*, not torch.uint8\.",
    ),
    ({"attn_mask": torch.ones(5, 7, dtype=torch.bool, device="meta")}, r"attn_mask is on meta but the query is on cpu;"),
    ({"key_mask": torch.zeros(2, 7)}, r"key_mask must be a boolean tensor, True = may attend\."),
    ({"key_mask": torch.ones(2, 5, dtype=torch.bool)}, r"key_mask must have shape \(2, 7\), not \(2, 5\)\."),
    ({"key_mask": torch.ones(2, 7, dtype=torch.bool, device="meta")}, r"key_mask is on meta but the query is on cpu;"),
    (
        {"key_mask": torch.ones(7, dtype=torch.bool), "key_padding_mask": torch.ones(7, dtype=torch.bool)},
        r"key_mask and key_padding_mask are one argument under two names; give key_mask alone\.",
    ),
    ({"impl": "gpu"}, r"impl='gpu' is not known; choose one of auto, reference, cpu, triton\."),
    ({"attn_mask": [[True]]}, r"attn_mask must be a tensor, not list; convert it with torch\.as_tensor\(attn_mask\)\."),
    ({"attn_mask": 1.5}, r"attn_mask must be a tensor, not float; alpha is a keyword argument: alpha=1\.5\."),
    ({"attn_mask": True}, r"attn_mask must be a tensor, not bool\."),
    ({"key_mask": [True]}, "key_mask must be a boolean tensor"),
    ({"alibi_slopes": [0.5, 0.25]}, "alibi_slopes must be a tensor"),
    ({"alpha": None}, "alpha must be a number or a tensor, not NoneType"),
    ({"alpha": True}, "alpha must be a number or a tensor, not bool"),
    ({"alpha": "1.5"}, r"alpha must be a number or a tensor, not str; write alpha=1\.5 without quotes"),
    ({"alpha": [1.5, 2.0]}, r"alpha must be a number or a tensor, not list; convert it with torch\.as_tensor\(alpha\)"),
    ({"alpha": np.array([1.5, 2.0])}, r"alpha must be .*, not ndarray; convert it with torch\.as_tensor\(alpha\)"),
    ({"scale": "0.5"}, r"scale must be a number, not str; write scale=0\.5 without quotes"),
    ({"dropout_p": None}, "dropout_p must be a number, not NoneType"),
    (
        {"query": normal(2, 4, 5, 8, dtype=torch.float8_e4m3fn)},
        r"query must be .* float32 or float64, not torch\.float8",
    ),
    ({"query": normal(2, 4, 5, 8).to_sparse()}, r"query must be a dense tensor .*, not torch\.sparse_coo; .*\.to_dense\(\)"),
    ({"query": torch.nested.nested_tensor([normal(4, 5, 8)] * 2, layout=torch.jagged)}, "query must be .*, not a nested one"),
    ({"window": 3}, "window must be a pair"),
    ({"window": (-1, -1)}, "at least 0 or None"),
    ({"window": (1.5, 0)}, "window must be a pair"),
    ({"window": (True, 0)}, "window must be a pair"),
    ({"softcap": 0.0}, "softcap=0.0 must be a positive number"),
    ({"softcap": math.nan}, "must be a positive number"),
    ({"softcap": "30"}, "softcap must be a number"),
    ({"sinks": torch.zeros(4), "normalizer": "rela"}, "sinks need weights that sum to one"),
    ({"sinks": torch.zeros(4), "normalizer": "sigmoid"}, "sinks need weights that sum to one"),
    ({"sinks": torch.zeros(3)}, "sinks must have shape"),
    ({"sinks": torch.zeros(4, dtype=torch.int32)}, "sinks must be a floating-point tensor"),
    ({"sinks": 0.0}, "sinks must be a tensor"),
    ({"sigmoid_bias": -1.0}, "sigmoid_bias is for normalizer='sigmoid' alone"),
    ({"sigmoid_bias": torch.zeros(()), "normalizer": "sigmoid"}, "pass a learned one as attn_mask"),
    ({"sigmoid_bias": math.inf, "normalizer": "sigmoid"}, "must be finite"),
    ({"cu_seqlens_q": CU_Q}, "cu_seqlens_k is missing"),
    ({"cu_seqlens_k": CU_K}, "cu_seqlens_q is missing"),
    ({"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K[:2]}, "must begin with 0"),
    ({"cu_seqlens_q": CU_Q, "cu_seqlens_k": torch.tensor([0, 7])}, "equally many"),
    ({"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K.float()}, "int32 tensor"),
    ({"cu_seqlens_q": CU_Q + 1, "cu_seqlens_k": CU_K}, "must begin with 0"),
    ({"cu_seqlens_q": torch.tensor([0, 3, 2, 5]), "cu_seqlens_k": torch.tensor([0, 4, 4, 7])}, "never decrease"),
    ({"cu_seqlens_q": CU_Q, "cu_seqlens_k": CU_K}, "in one batch entry"),
]


@pytest.mark.parametrize(("change", "sentence"), BAD, ids=[f"{next(iter(c))}-{i}" for i, (c, _) in enumerate(BAD)])
@pytest.mark.parametrize("impl", ["cpu", "reference"])
def test_invalid_arguments_raise(change: dict[str, Any], sentence: str, impl: Impl, kernels: None) -> None:
    with pytest.raises(ArgumentError, match=sentence) as caught:
        attention(**{"impl": impl} | good() | change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({name: t.double() for name, t in good().items()}, r"impl='cpu' does not support float64; use impl='auto'"),
        ({"key": normal(2, 4, 0, 8), "value": normal(2, 4, 0, 6)}, r"does not support rows without keys; use impl='auto'"),
        ({name: t.to("meta") for name, t in good().items()}, r"impl='cpu' cannot run on a meta tensor"),
        ({"impl": "triton"}, r"impl='triton' cannot run on a cpu tensor; move it to a cuda device or use impl='auto'\."),
    ],
)
def test_an_explicit_impl_never_falls_back(change: dict[str, Any], sentence: str, kernels: None) -> None:
    with pytest.raises(ImplUnavailable, match=sentence):
        attention(**{"impl": "cpu"} | good() | change)


def test_forward_mode_takes_the_dense_path(kernels: None) -> None:
    primal = good()
    tangent = normal(2, 4, 5, 8)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(primal["query"], tangent)
        with pytest.raises(ImplUnavailable, match=r"does not support forward-mode differentiation; use impl='auto'"):
            attention(**primal | {"query": dual}, impl="cpu")
        out = attention(**primal | {"query": dual})
        moved = torch.autograd.forward_ad.unpack_dual(out).tangent
    step = 1e-3
    up, down = (attention(**primal | {"query": primal["query"] + sign * step * tangent}, impl="reference") for sign in (1, -1))
    torch.testing.assert_close(moved, (up - down) / (2 * step), rtol=2e-2, atol=2e-3)  # of a central difference in float32


# Weights of softmax and sums of 8 to 16 products of size 1 to 4: some tens of units of float32.
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 5e-6}
LEADING: list[tuple[int, ...]] = [(), (3,), (2, 3), (2, 2, 3), (2, 1, 2, 3)]


@pytest.mark.parametrize("leading", LEADING, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_any_number_of_dimensions(leading: tuple[int, ...], causal: bool, impl: Impl) -> None:
    q, k, v = normal(*leading, 5, 8), normal(*leading, 7, 8), normal(*leading, 7, 6)
    mask = (normal(*leading, 5, 7) > -1.0) | (torch.arange(7) == 0)
    shared: dict[str, Any] = {"is_causal": True} if causal else {"attn_mask": mask}
    out = attention(q, k, v, normalizer="softmax", impl=impl, **shared, return_stats=True, return_support=True)
    torch.testing.assert_close(out.output, torch_attention(q, k, v, **shared), **CLOSE)
    assert out.stats.support_size.shape == out.stats.entropy.shape == out.stats.logsumexp.shape == q.shape[:-1]
    assert out.support.crow.numel() == q.shape[:-1].numel() + 1


SHARED: dict[str, Callable[[], dict[str, Any]]] = {
    "nothing": dict,
    "boolean mask": lambda: {"attn_mask": (normal(2, 1, 9, 13) > -0.5) | (torch.arange(13) == 3)},
    "boolean mask over all": lambda: {"attn_mask": (normal(9, 13) > -0.5) | (torch.arange(13) == 3)},
    "float mask": lambda: {"attn_mask": normal(2, 4, 9, 13)},
    "float mask with -inf": lambda: {"attn_mask": normal(9, 13).masked_fill(torch.arange(13) > 8, -math.inf)},
    "causal": lambda: {"is_causal": True},
    "scale": lambda: {"scale": 0.9},
    "all": lambda: {"attn_mask": (normal(9, 13) > -0.5) | (torch.arange(13) == 3), "scale": 0.2},
}


@pytest.mark.parametrize("heads", [4, 2, 1])
@pytest.mark.parametrize("shared", SHARED)
def test_softmax_is_torchs_attention(shared: str, heads: int, impl: Impl) -> None:
    """Output and gradients, with shared key heads too."""
    arguments = SHARED[shared]()
    if "float" in shared and impl == "cpu":
        impl = "auto"
    answers = []
    functions: list[Callable[..., Any]] = [torch_attention, attention]
    for function in functions:
        leaves = [t.requires_grad_() for t in (normal(2, 4, 9, 16), normal(2, heads, 13, 16), normal(2, heads, 13, 8))]
        ours: dict[str, Any] = {} if function is torch_attention else {"normalizer": "softmax", "impl": impl}
        out = function(*leaves, enable_gqa=heads != 4, **arguments, **ours)
        answers.append((out, *torch.autograd.grad(out, leaves, normal(2, 4, 9, 8))))
    for right, answer in zip(*answers, strict=True):
        torch.testing.assert_close(answer, right, **CLOSE)


@pytest.mark.parametrize("normalizer", ["softmax", "entmax15", "sparsemax"])
def test_named_normalizers_are_fixed_alphas(normalizer: str, impl: Impl) -> None:
    alpha = {"softmax": 1.0, "entmax15": 1.5, "sparsemax": 2.0}[normalizer]
    named = attention(**good(), normalizer=normalizer, alpha=1.7, impl=impl)  # alpha is read by "entmax" alone
    assert torch.equal(named, attention(**good(), alpha=alpha, impl=impl))
    assert torch.equal(named, attention(**good(), alpha=torch.tensor(alpha), impl=impl))


def test_dropout_drops_the_given_share(impl: Impl) -> None:
    """With v the identity the output is the weights themselves; with equal scores they are 1/n or 0."""
    n, share = 100, 0.3
    q, k = torch.zeros(2, 3, n, 8), normal(2, 3, n, 8)
    identity = torch.eye(n).expand(2, 3, n, n)

    def run(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return attention(query=q, key=k, value=identity, normalizer="softmax", dropout_p=share, impl=impl)

    used = run(0)
    assert torch.equal(used, run(0))
    assert not torch.equal(used, run(1))
    dropped = used == 0.0
    torch.testing.assert_close(used[~dropped], torch.full_like(used[~dropped], 1.0 / n / (1.0 - share)))
    # Five standard deviations of a binomial share, for the whole and for each column (600 draws).
    assert abs(dropped.float().mean().item() - share) < 5 * math.sqrt(share * (1 - share) / dropped.numel())
    assert (dropped.float().mean((0, 1, 2)) - share).abs().max() < 5 * math.sqrt(share * (1 - share) / 600)
    for one, other in ((dropped[0], dropped[1]), (dropped[:, 0], dropped[:, 1]), (dropped[:, :, 0], dropped[:, :, 1])):
        assert (one != other).any(), "batches, heads and rows draw apart"


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mask", [None, "float"])
def test_autocast_converts_as_torchs_attention_does(narrow: torch.dtype, mask: str | None, kernels: None) -> None:
    leaves = {name: t.requires_grad_() for name, t in good().items()}
    alpha = torch.full((4,), 1.3, requires_grad=True)
    bias = None if mask is None else normal(5, 7)
    with torch.autocast("cpu", narrow):
        assert torch_attention(*leaves.values()).dtype == narrow
        out = attention(**leaves, alpha=alpha, attn_mask=bias)
        grads = torch.autograd.grad(out.float().sum(), [*leaves.values(), alpha])
        with torch.autocast("cpu", enabled=False):
            assert attention(**leaves, attn_mask=bias).dtype == torch.float32
        wide = {name: t.double() for name, t in good().items()}
        assert attention(**wide).dtype == torch.float64  # autocast leaves float64 alone
    assert out.dtype == narrow
    assert {g.dtype for g in grads} == {torch.float32}
    # The reference on rounded inputs differs by rounding the output, and the weights where the CPU multiplies bfloat16.
    rounded = {name: t.detach().to(narrow).double() for name, t in leaves.items()}
    right = attention(**rounded, alpha=alpha.detach(), attn_mask=bias, impl="reference")
    eps = torch.finfo(narrow).eps
    rounded_weights = narrow == torch.bfloat16 and native.isa() in ("amx", "avx512_bf16")
    atol = eps * rounded["value"].abs().max().item() if rounded_weights else 1e-5
    torch.testing.assert_close(out.double(), right, rtol=eps, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("query", "key"),
    [
        ((0, 4, 5, 8), (0, 4, 7, 8)),
        ((2, 4, 0, 8), (2, 4, 7, 8)),
        ((2, 0, 5, 8), (2, 0, 7, 8)),
        ((4, 0, 8), (4, 7, 8)),
        ((0, 5, 8), (0, 7, 8)),
        ((0, 8), (7, 8)),
        ((2, 0, 3, 5, 8), (2, 0, 3, 7, 8)),
        *(((*leading, 5, 8), (*leading, 0, 8)) for leading in LEADING),
    ],
    ids=str,
)
def test_nothing_to_do(query: tuple[int, ...], key: tuple[int, ...], dtype: torch.dtype, impl: Impl) -> None:
    q, k, v = (normal(*shape, dtype=dtype).requires_grad_() for shape in (query, key, key))
    alpha = torch.full((), 1.5, requires_grad=True)
    if not key[-2] and impl == "cpu":
        impl = "auto"  # rows without keys are refused by name
    out = attention(q, k, v, alpha=alpha, impl=impl, return_stats=True, return_support=True)
    assert out.output.shape == query
    assert (out.output == 0.0).all()
    assert (out.stats.support_size == 0).all()
    assert out.support.col.numel() == 0
    for leaf, grad in zip((q, k, v, alpha), torch.autograd.grad(out.output.sum(), (q, k, v, alpha)), strict=True):
        assert grad.shape == leaf.shape
        assert (grad == 0.0).all()
