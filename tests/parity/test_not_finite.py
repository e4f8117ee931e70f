"""NaN and infinity in attention and in rows: what is masked does not exist, and what is not finite stays where it belongs.

In: small problems with NaN or infinity in queries, keys, values, masks, gradients, scores. Out: the contract of
docs/conventions.md, for the kernels on every instruction set, for the reference, and for the dense path of the modules.
"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from entformer import MultiheadAttention
from entformer.kernels.attention.api import attention
from entformer.kernels.entmax.api import entmax
from entformer.kernels.registry import Impl

from .fuzzing import run_attention

pytestmark = pytest.mark.usefixtures("poisoned_memory")

INF = math.inf
NAN = math.nan
ALPHAS = [1.0, 1.01, 1.25, 1.5, 2.0, 2.5]
HOW: list[dict[str, Any]] = [*({"alpha": a} for a in ALPHAS), {"normalizer": "rela"}]
EVERY_WAY = pytest.mark.parametrize("how", HOW, ids=lambda how: "-".join(map(str, how.values())))
MASKS = ["padding", "boolean", "causal"]
# Of well-conditioned problems with logits of size 1, as in test_attention_edges.py.
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-5}
# Few queries, a dense block, a sparse one, several blocks over keys beyond the cache.
SHAPES = {"few": (2, 40, 1.0), "dense": (9, 20, 0.1), "sparse": (9, 70, 4.0), "long": (60, 1900, 2.0)}


def problem(queries: int, keys: int, logits: float, heads: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    seed = torch.Generator().manual_seed(queries + keys)
    q, k, v = (torch.randn(2, heads, n, 16, generator=seed) for n in (queries, keys, keys))
    return logits * q, k, v


def run(
    q: Tensor, k: Tensor, v: Tensor, how: dict[str, Any], impl: Impl = "cpu", grad: Tensor | None = None
) -> dict[str, Tensor]:
    """Output and the gradients to q, k, v, alpha and a floating-point mask."""
    leaves = {"q": q, "k": k, "v": v}
    if "alpha" in how:
        leaves["alpha"] = torch.full((2,), how["alpha"], dtype=torch.float64)
    if "attn_mask" in how and how["attn_mask"].is_floating_point():
        leaves["attn_mask"] = how["attn_mask"]
    return run_attention(leaves, how, torch.ones_like(q).cos() if grad is None else grad, impl)[0]


def masks_of(kind: str, masked: Tensor, queries: int) -> dict[str, Any]:
    """Arguments of `attention` that mask the keys in `masked`, which are the last ones."""
    bias = torch.randn(queries, len(masked), generator=torch.Generator().manual_seed(0))
    masks: dict[str, dict[str, Any]] = {
        "padding": {"key_mask": ~masked.expand(2, -1)},
        "boolean": {"attn_mask": ~masked.expand(queries, -1)},
        "causal": {"is_causal": True},
        "float": {"attn_mask": bias.masked_fill(masked, -INF)},
    }
    return masks[kind]


def assert_close(ours: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    for name, value in right.items():
        torch.testing.assert_close(
            ours[name], value, **CLOSE, equal_nan=True, check_dtype=False, msg=lambda text, n=name: f"{n}: {text}"
        )


@EVERY_WAY
@pytest.mark.parametrize(
    ("shape", "garbage", "kind"),
    [*((*at, kind) for at in zip(SHAPES, (INF, -INF, NAN), strict=False) for kind in MASKS), ("long", 3e38, "causal")],
)
def test_what_a_masked_key_or_value_holds_does_not_matter(
    shape: str, garbage: float, kind: str, how: dict[str, Any], isa: str
) -> None:
    queries, keys, logits = SHAPES[shape]
    q, k, v = problem(queries, keys, logits)
    masked = torch.arange(keys) >= keys - 7 if kind != "causal" else torch.arange(keys) >= queries
    how = how | masks_of(kind, masked, queries)
    dirty_k, dirty_v = (torch.where(masked[:, None], garbage, t) for t in (k, v))
    clean = run(q, k, v, how)
    assert_close(run(q, dirty_k, dirty_v, how), clean)
    assert all(t.isfinite().all() for t in clean.values())


@EVERY_WAY
@pytest.mark.parametrize("kind", [*MASKS, "float"])
def test_nor_does_it_in_the_reference_and_the_dense_path(kind: str, how: dict[str, Any]) -> None:
    q, k, v = problem(9, 20, 1.0)
    masked = torch.arange(20) >= 9
    how = how | masks_of(kind, masked, 9)
    for impl in ("reference", "auto"):
        clean = run(q, k, v, how, impl)
        for garbage in (NAN, INF):
            dirty_k, dirty_v = (torch.where(masked[:, None], garbage, t) for t in (k, v))
            assert_close(run(q, dirty_k, dirty_v, how, impl), clean)
        assert all(t.isfinite().all() for t in clean.values())


@EVERY_WAY
@pytest.mark.parametrize("part", ["query", "key", "key of infinity", "value"])
@pytest.mark.parametrize("shape", ["few", "dense", "sparse"])
def test_what_some_may_attend_to_reaches_those_alone(shape: str, part: str, how: dict[str, Any], isa: str) -> None:
    """Key 3 is seen by every second query; query 1 sees all but the last five keys."""
    queries, keys, logits = SHAPES[shape]
    q, k, v = problem(queries, keys, logits)
    mask = torch.ones(queries, keys, dtype=torch.bool)
    mask[::2, 3] = False
    mask[1, -5:] = False
    clean = run(q, k, v, how | {"attn_mask": mask})
    broken = torch.zeros(queries, dtype=torch.bool)
    if part == "query":
        q[:, :, 1, 2] = NAN
        broken[1] = True
    elif part == "value":
        v[:, :, 3, 2] = NAN
        broken = mask[:, 3]
    else:
        k[:, :, 3, 2] = NAN if part == "key" else INF
        broken = mask[:, 3]
    ours = run(q, k, v, how | {"attn_mask": mask})
    for name in ("out", "q"):
        torch.testing.assert_close(ours[name][:, :, ~broken], clean[name][:, :, ~broken], **CLOSE)
        if part != "value":  # a value without weight is not asked for
            assert ours[name][:, :, broken].isnan().all()
    if part == "query":  # the keys that it may not attend to
        assert ours["k"][:, :, :-5].isnan().all()
        for name in ("k", "v"):
            torch.testing.assert_close(ours[name][:, :, -5:], clean[name][:, :, -5:], **CLOSE)
    if part != "value":
        for name, right in run(q, k, v, how | {"attn_mask": mask}, "reference").items():
            assert torch.equal(ours[name].isnan(), right.isnan())


@EVERY_WAY
@pytest.mark.parametrize("shape", ["few", "dense", "sparse"])
def test_a_gradient_of_nan_reaches_its_row_alone(shape: str, how: dict[str, Any], isa: str) -> None:
    queries, keys, logits = SHAPES[shape]
    q, k, v = problem(queries, keys, logits)
    mask = torch.ones(queries, keys, dtype=torch.bool)
    mask[1, 5:] = False
    grad = torch.ones_like(q)
    clean = run(q, k, v, how | {"attn_mask": mask}, grad=grad)
    grad = grad.clone()
    grad[:, :, 1, 0] = NAN
    ours = run(q, k, v, how | {"attn_mask": mask}, grad=grad)
    others = torch.arange(queries) != 1
    torch.testing.assert_close(ours["q"][:, :, others], clean["q"][:, :, others], **CLOSE)
    for name in ("k", "v"):
        torch.testing.assert_close(ours[name][:, :, 5:], clean[name][:, :, 5:], **CLOSE)


@EVERY_WAY
@pytest.mark.parametrize("queries", [2, 20])
@pytest.mark.parametrize("impl", ["cpu", "reference"])
def test_an_infinite_score_shows(impl: Impl, queries: int, how: dict[str, Any]) -> None:
    """As in scaled_dot_product_attention: an overflow, or infinity in a query, gives NaN, not some finite output."""
    q, k, v = problem(queries, 30, 1.0)
    q[:, :, 0] = INF
    q[:, :, 1] = 3e37
    k = k.abs() + 10.0
    bias = torch.zeros(queries, 30)
    if impl == "reference":  # in float64 nothing overflows; what is added may be infinite
        bias[1, 4] = INF
        how = how | {"attn_mask": bias}
    out = attention(q, k, v, **how, impl=impl)
    assert out[:, :, :2].isnan().all()
    assert out[:, :, 2:].isfinite().all()


@pytest.mark.parametrize("normalizer", ["entmax", "topk"])
@pytest.mark.parametrize("garbage", [NAN, INF])
def test_padding_of_a_module_may_hold_anything(normalizer: str, garbage: float) -> None:
    torch.manual_seed(0)
    module = MultiheadAttention(16, 2, batch_first=True, normalizer=normalizer)
    x = torch.randn(2, 6, 16)
    memory = torch.randn(2, 5, 16)
    ignored = torch.zeros(2, 5, dtype=torch.bool)
    ignored[:, 3:] = True

    def outcome(memory: Tensor) -> tuple[Tensor, ...]:
        queries = x.clone().requires_grad_()
        out, _ = module(queries, memory, memory, key_padding_mask=ignored, need_weights=False)
        return out.detach(), *torch.autograd.grad(out.sin().sum(), queries)

    clean, dirty = outcome(memory), outcome(memory.masked_fill(ignored[..., None], garbage))
    for ours, right in zip(dirty, clean, strict=True):
        torch.testing.assert_close(ours, right)


# ---- rows ----------------------------------------------------------------------------------------------------------------


def row_outcome(x: Tensor, alpha: float, grad: Tensor, impl: str) -> tuple[Tensor, ...]:
    x, exponent = x.clone().requires_grad_(), torch.full((len(x), 1), alpha, dtype=torch.float64, requires_grad=True)
    weights = entmax(x, exponent, impl=impl)
    return weights.detach(), *torch.autograd.grad(weights, (x, exponent), grad.to(x.dtype))


@pytest.mark.parametrize("alpha", [0.5, *ALPHAS, 4.0])
@pytest.mark.parametrize("n", [5, 100, 1500])
def test_rows_with_nan_and_infinity(n: int, alpha: float, isa: str) -> None:
    """NaN: NaN weights and gradients, in that row alone. +inf: equal shares, with the gradient of equal scores."""
    seed = torch.Generator().manual_seed(n)
    x, grad = torch.randn(5, n, generator=seed), torch.randn(5, n, generator=seed)
    x[0, 2] = NAN
    x[0, 3] = -INF
    x[1, [1, 3, 4]] = INF
    x[2, 0], x[2, 1] = INF, -INF
    x[3, 4], x[3, 3] = INF, NAN
    ours = row_outcome(x, alpha, grad, "cpu")
    right = row_outcome(x.double(), alpha, grad, "reference")
    for t in (*ours, *right):
        assert t[[0, 3]].isnan().all()
        assert t[[1, 2, 4]].isfinite().all()
    assert torch.equal(right[0][1].nonzero().flatten(), torch.tensor([1, 3, 4]))
    tied = torch.full((1, n), -INF, dtype=torch.float64)
    tied[0, [1, 3, 4]] = 7.0
    for got, same in zip(right, row_outcome(tied, alpha, grad[1:2].double(), "reference"), strict=True):
        torch.testing.assert_close(got[1:2], same, rtol=1e-9, atol=1e-12)
    for got, same in zip(ours, right, strict=True):
        torch.testing.assert_close(got[:4].double(), same[:4], rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("impl", ["cpu", "reference"])
def test_a_gradient_of_nan_outside_the_support_of_a_row_does_not_count(impl: str) -> None:
    x = torch.tensor([[0.0, 0.1, -9.0], [0.0, 0.1, 0.2]], dtype=torch.float64)
    grad = torch.tensor([[1.0, 2.0, NAN], [1.0, 2.0, 3.0]])
    grad_x = row_outcome(x, 1.5, grad, impl)[1]
    assert grad_x[0, 2] == 0.0
    assert grad_x.isfinite().all()


def test_statistics_of_a_broken_row() -> None:
    q, k, v = problem(4, 6, 1.0)
    q[:, :, 1] = NAN
    for impl in ("cpu", "reference"):
        answer = attention(q, k, v, return_stats=True, return_support=True, impl=impl)
        assert (answer.stats.support_size[:, :, 1] == 0).all()
        assert answer.stats.logsumexp[:, :, 1].isnan().all()
        assert answer.stats.logsumexp[:, :, [0, 2, 3]].isfinite().all()
