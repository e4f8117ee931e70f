"""Fused attention beyond the cases of test_attention.py: the support, statistics, float masks; gradcheck of the reference."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from entformer.kernels.attention.api import Attention, attention
from entformer.kernels.registry import Impl

pytestmark = pytest.mark.usefixtures("poisoned_memory")

INF = math.inf
ALPHAS = [1.0, 1.01, 1.25, 1.5, 2.0, 2.5]
HOW: list[dict[str, Any]] = [*({"alpha": a} for a in ALPHAS), {"normalizer": "rela"}]
EVERY_WAY = pytest.mark.parametrize("how", HOW, ids=lambda how: "-".join(map(str, how.values())))


def problem(batch: int, heads: int, queries: int, keys: int, size: int, logits: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    seed = torch.Generator().manual_seed(batch + 7 * heads + queries + keys + size)
    q, k, v = (torch.randn(batch, heads, n, size, generator=seed) for n in (queries, keys, keys))
    return logits * q, k, v


def output(*args: Tensor, **how: Any) -> Tensor:
    out = attention(*args, **how)
    assert isinstance(out, Tensor)
    return out


# Of well-conditioned problems with logits of size 1: scores are exact to 1e-6, weights too, and slopes to some times that.
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-5}


def test_rela_may_find_nothing(isa: str) -> None:
    """A row of negative scores is not masked, but has no weight either."""
    q, k, v = problem(1, 2, 6, 40, 8)
    q, k, v = (t.requires_grad_() for t in (-q.abs(), k.abs(), v))
    out = output(q, k, v, normalizer="rela", impl="cpu")
    assert (out == 0.0).all()
    assert all((g == 0.0).all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


def weights_of(answer: Attention, keys: int) -> Tensor:
    """Dense weights (rows, Lk) from the support, after checking that it is a well-formed CSR."""
    assert answer.support is not None
    crow, col, weight = answer.support
    assert (crow.dtype, col.dtype, weight.dtype) == (torch.int64, torch.int32, torch.float32)
    assert crow[0] == 0
    assert crow[-1] == len(col) == len(weight)
    counts = crow.diff()
    row = torch.arange(counts.numel()).repeat_interleave(counts)
    assert ((col >= 0) & (col < keys)).all()
    assert (torch.diff(row * keys + col) > 0).all(), "columns ascend within a row, none twice"
    full = torch.zeros(counts.numel(), keys, dtype=torch.float64)
    full[row, col.long()] = weight.double()
    return full


@pytest.mark.parametrize("dominant", [1, 200], ids=["dense", "sparse"])
def test_keys_at_the_very_edge_are_counted_and_written_alike(dominant: int, isa: str) -> None:
    # Scores are neighbors of -1 / (alpha - 1) in float32: there 1 + e x may round to more than zero on either side.
    alphas = torch.linspace(1.05, 1.95, 46, dtype=torch.float64)
    edges = (-1.0 / (alphas - 1.0)).float()
    steps = torch.arange(-40, 41, dtype=torch.int32)
    near = (edges.view(torch.int32)[:, None] + steps).view(torch.float32)  # (H, 81), one unit in the last place apart
    far = torch.full((len(alphas), dominant - 1), -1e4)
    keys = torch.cat([torch.zeros(len(alphas), 1), far, near], 1)[None, :, :, None]  # (1, H, Lk, 1)
    queries = torch.ones(1, len(alphas), 8, 1)
    answer = attention(queries, keys, keys, alpha=alphas, scale=1.0, return_stats=True, return_support=True)
    assert isinstance(answer, Attention)
    assert answer.stats is not None
    assert answer.support is not None
    weights = weights_of(answer, keys.shape[2])
    assert (answer.support.weight > 0).all()
    assert torch.equal((weights > 0).sum(1), answer.stats.support_size.flatten())
    torch.testing.assert_close(weights.sum(1), torch.ones(weights.shape[0], dtype=torch.float64), rtol=0.0, atol=2e-6)


@pytest.mark.parametrize("alpha", [1.05, 1.1, 1.2, 1.45])
def test_dense_rows_have_the_support_of_their_threshold(alpha: float, isa: str) -> None:
    """Dense rows get their weights from the solver's last step, the support from the threshold: both have the same keys."""
    for logits in (0.5, 2.0, 4.0, 8.0):
        for is_causal in (False, True):
            answer = attention(
                *problem(2, 3, 100, 100, 16, logits), alpha=alpha, is_causal=is_causal, return_support=True, impl="cpu"
            )
            assert isinstance(answer, Attention)
            assert (weights_of(answer, 100) >= 0.0).all()


@pytest.mark.parametrize("keys", [16, 70, 600])
@pytest.mark.parametrize("logits", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("alpha", [1.039, 1.04, 1.06, 1.083, 1.12, 1.3, 1.49, 1.7, 1.95])
def test_weights_of_dense_rows_are_exact(alpha: float, logits: float, keys: int, isa: str) -> None:
    """Powers up to the 24th of a rounded base, last steps from far, guesses from other rows; some rows are unlike the rest."""
    q, k, _ = problem(1, 2, 50, keys, 8, logits)
    q[:, :, 30:33] *= 6.0
    q, k = (t.requires_grad_() for t in (q, k))
    learned = torch.full((2,), alpha, requires_grad=True)
    identity = torch.eye(keys).expand(1, 2, keys, keys)
    grad = torch.randn(1, 2, 50, keys, generator=torch.Generator().manual_seed(3))

    def run(dtype: torch.dtype, impl: Impl, factor: float = 1.0) -> list[Tensor]:
        leaves = [t.detach().to(dtype).requires_grad_() for t in (q, k, learned)]
        out = output(leaves[0] * factor, leaves[1], identity.to(dtype), alpha=leaves[2], impl=impl)
        return [out.detach(), *torch.autograd.grad(out, leaves, grad.to(dtype))]

    weights, *gradients = run(torch.float32, "cpu")
    right, *right_gradients = run(torch.float64, "reference")
    _weights, *rounded_gradients = run(torch.float64, "reference", 1.0 + 2**-21)  # near alpha 2 slopes begin with a jump
    size = max(logits, 1.0)
    assert (weights - right).abs().max() < 1e-6 * size  # scores are exact to about that
    # Up to a sum of slopes of 16 a row is solved in float32, where rounding its threshold moves its sum by as many units.
    assert (weights.double().sum(-1) - 1.0).abs().max() < 16 * torch.finfo(torch.float32).eps
    for ours, there, rounded in zip(gradients, right_gradients, rounded_gradients, strict=True):
        allowed = 5e-5 * size + 1e-4 * there.abs() + (rounded - there).abs()
        assert ((ours - there).abs() <= allowed).all()


@pytest.mark.parametrize("keys", [5, 19, 100])
@pytest.mark.parametrize("alpha", [1.01, 1.3, 1.5, 1.6, 1.9, 2.0])
def test_a_short_row_does_not_depend_on_the_rows_solved_with_it(alpha: float, keys: int, isa: str) -> None:
    """Rows of at most 128 keys share their steps; in another order of the queries each has the same output, to the bit."""
    q, k, v = problem(1, 2, 40, keys, 16)
    q = q * torch.logspace(-2, 1, 40)[:, None]  # nearly equal scores beside rows of one key
    order = torch.randperm(40, generator=torch.Generator().manual_seed(keys))
    assert torch.equal(output(q, k, v, alpha=alpha)[:, :, order], output(q[:, :, order], k, v, alpha=alpha))


@pytest.mark.parametrize("sizes", [(0, 8), (8, 0), (0, 0)])
def test_heads_without_elements(sizes: tuple[int, int], isa: str) -> None:
    """Without elements in query and key all scores are zero; such tensors have no memory that could be read."""
    q, k, v = (torch.randn(2, 2, 70, n, requires_grad=True) for n in (sizes[0], *sizes))
    out = output(q, k, v, alpha=1.3, scale=1.0, impl="cpu")
    grads = torch.autograd.grad(out.sum(), (q, k, v))
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]
    if sizes[0] == 0:
        torch.testing.assert_close(out, v.mean(2, keepdim=True).expand_as(out), **CLOSE)


# Supports of more than 85 keys are saved as gaps of one byte, at most 254.
@pytest.mark.parametrize("how", [how for how in HOW if how.get("alpha", 0) <= 2.0], ids=str)
@pytest.mark.parametrize("queries", [2, 37])
def test_columns_far_apart_come_back(how: dict[str, Any], queries: int, isa: str) -> None:
    keys, far = 5000, [0, 254, 509, 765, 1275, 2040, 3999, 4998, 4999]
    seen = torch.zeros(keys, dtype=torch.bool)
    seen[far] = seen[1500:1740] = True
    # Small logits: all that may be seen has weight; by ReLA, half of it.
    q, k, v = problem(1, 2, queries, keys, 64, 1.0 if "alpha" not in how else 0.002)
    grad = torch.randn(q.shape, generator=torch.Generator().manual_seed(1))

    def gradients(impl: Impl, dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [t.to(dtype).requires_grad_() for t in (q, k, v)]
        out = output(*leaves, **how, attn_mask=seen, impl=impl)
        return torch.autograd.grad(out, leaves, grad.to(dtype))

    for ours, right in zip(gradients("cpu", torch.float32), gradients("reference", torch.float64), strict=True):
        torch.testing.assert_close(ours, right.float(), **CLOSE)


def test_more_alphas_than_tables_of_powers(isa: str) -> None:
    heads = 70  # a thread keeps the tables of 32
    q, k, v = problem(2, heads, 5, 20, 8, 2.0)
    grad = torch.randn(q.shape, generator=torch.Generator().manual_seed(1))

    def outcome(impl: Impl, dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [t.to(dtype).requires_grad_() for t in (q, k, v, torch.linspace(1.02, 1.99, heads))]
        out = output(*leaves[:3], alpha=leaves[3], impl=impl)
        return out.detach(), *torch.autograd.grad(out, leaves, grad.to(dtype))

    for ours, right in zip(outcome("cpu", torch.float32), outcome("reference", torch.float64), strict=True):
        torch.testing.assert_close(ours, right.float(), **CLOSE)


# The scores are added up in another order then: what equal scores of a thousand are off by, they are off by together.
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
def test_large_equal_scores_keep_weights_that_sum_to_one(alpha: float, isa: str) -> None:
    seed = torch.Generator().manual_seed(3)
    key = torch.randn(1, 1, 1, 64, generator=seed)
    q, k = 900.0 * key + torch.randn(1, 1, 40, 64, generator=seed), key.expand(1, 1, 2100, 64)
    k = torch.cat([k[:, :, :200], -k[:, :, 200:]], dim=2)  # 200 equal keys, the rest far below
    v = torch.ones(1, 1, 2100, 64, requires_grad=True)
    (grad_v,) = torch.autograd.grad(output(q, k, v, alpha=alpha, impl="cpu"), v, torch.ones(1, 1, 40, 64))
    torch.testing.assert_close(grad_v[0, 0, :200], torch.full((200, 64), 40 / 200), rtol=1e-4, atol=0)
    assert not grad_v[0, 0, 200:].any()


@EVERY_WAY
@pytest.mark.parametrize(("lengths", "logits"), [((65, 65), 1.0), ((65, 65), 20.0), ((13, 300), 4.0)])
def test_support_and_statistics(lengths: tuple[int, int], logits: float, how: dict[str, Any], isa: str) -> None:
    """At 20 and alpha near 1, weights run below the smallest float32: those are not in the support, and nobody overruns it."""
    queries, keys = lengths
    q, k, v = problem(2, 2, queries, keys, 16, logits)
    mask = torch.rand(2, 1, queries, keys, generator=torch.Generator().manual_seed(2)) < 0.9
    mask[0, 0, 2] = False
    answers = {}
    for impl in ("cpu", "reference"):
        answer = attention(q, k, v, **how, attn_mask=mask, return_stats=True, return_support=True, impl=impl)
        assert isinstance(answer, Attention)
        answers[impl] = answer
    ours, right = (weights_of(answers[impl], keys) for impl in ("cpu", "reference"))
    # Scores of size `logits` are exact to about 1e-6 times that; beyond alpha = 2 a weight at the edge moves by a root of it.
    rough = how.get("alpha", 1.0) > 2.0
    close: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-3 if rough else 3e-6 * logits}
    torch.testing.assert_close(ours, right, **close)
    assert answers["cpu"].support is not None
    assert (answers["cpu"].support.weight > 0.0).all()
    assert (ours.reshape(2, 2, queries, keys)[~mask.expand(2, 2, -1, -1)] == 0.0).all()

    cpu, reference = answers["cpu"].stats, answers["reference"].stats
    assert cpu is not None
    assert reference is not None
    assert cpu.support_size.shape == cpu.entropy.shape == cpu.logsumexp.shape == (2, 2, queries)
    assert torch.equal(cpu.support_size.flatten().long(), (ours > 0.0).sum(-1))
    own_entropy = -torch.xlogy(ours, ours).sum(-1)
    torch.testing.assert_close(cpu.entropy.flatten().double(), own_entropy, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(cpu.entropy, reference.entropy, rtol=1e-3, atol=1e-2 if rough else 3e-5 * logits)
    if "alpha" not in how:  # ReLA has no such number
        assert cpu.logsumexp.isnan().all()
        assert reference.logsumexp.isnan().all()
    else:
        torch.testing.assert_close(cpu.logsumexp, reference.logsumexp, rtol=1e-5, atol=1e-5 * logits)
    rebuilt = (ours.reshape(2, 2, queries, keys) @ v.double()).float()
    torch.testing.assert_close(answers["cpu"].output, rebuilt, rtol=1e-5, atol=1e-5 * float(rebuilt.abs().max()))


BIASES = {"(Lq, Lk)": (17, 33), "(H, Lq, Lk)": (2, 17, 33), "(B, 1, 1, Lk)": (3, 1, 1, 33), "(B, H, Lq, Lk)": (3, 2, 17, 33)}


@pytest.mark.parametrize("shape", BIASES.values(), ids=BIASES)
@EVERY_WAY
def test_float_mask_has_a_gradient(shape: tuple[int, ...], how: dict[str, Any]) -> None:
    """impl="auto" takes the dense path, in float32 and with the row kernels."""
    seed = torch.Generator().manual_seed(4)
    q, k, v = problem(3, 2, 17, 33, 16)
    bias = torch.randn(shape, generator=seed)
    bias[..., 5] = -INF
    padding = torch.arange(33) < torch.tensor([[33], [20], [7]])
    grad = torch.randn(q.shape, generator=seed)

    def run(impl: Impl) -> tuple[Tensor, ...]:
        leaves = [t.detach().clone().requires_grad_() for t in (q, k, v, bias)]
        more = dict(how)
        if "alpha" in how:
            more["alpha"] = torch.full((2,), how["alpha"], requires_grad=True)
            leaves.append(more["alpha"])
        out = output(*leaves[:3], attn_mask=leaves[3], key_mask=padding, is_causal=True, **more, causal_offset=9, impl=impl)
        return out.detach(), *torch.autograd.grad(out, leaves, grad)

    for ours, right in zip(run("auto"), run("reference"), strict=True):
        assert ours.shape == right.shape
        assert right.abs().sum() > 0.0
        torch.testing.assert_close(ours, right, **CLOSE)


@pytest.mark.parametrize("extra", ["masks and dropout", "alibi and scale"])
@EVERY_WAY
def test_gradcheck_of_the_reference(how: dict[str, Any], extra: str) -> None:
    seed = torch.Generator().manual_seed(6)
    shapes = [(1, 2, 3, 2), (1, 1, 4, 2), (1, 1, 4, 2), (2, 3, 4)]  # q, k, v, bias
    leaves = [torch.randn(shape, generator=seed, dtype=torch.float64, requires_grad=True) for shape in shapes]
    if "alpha" in how:
        leaves.append(torch.full((1, 2), how["alpha"], dtype=torch.float64, requires_grad=True))
    more: dict[str, dict[str, Any]] = {
        "masks and dropout": {
            "is_causal": True,
            "causal_offset": -1,
            "key_mask": torch.tensor([True, True, False, True]),
            "dropout_p": 0.4,
        },
        "alibi and scale": {"alibi_slopes": torch.rand(1, 2, generator=seed, dtype=torch.float64), "scale": 0.7},
    }

    def run(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, *alpha: Tensor) -> Tensor:
        torch.manual_seed(0)
        named = {"alpha": alpha[0]} if alpha else how
        return output(q, k, v, attn_mask=bias, enable_gqa=True, impl="reference", **named, **more[extra])

    if how.get("alpha") == 1.0:  # the finite difference would step below 1, which `attention` refuses: check just above
        leaves[-1] = (leaves[-1].detach() + 1e-5).requires_grad_()
    assert torch.autograd.gradcheck(run, leaves, eps=1e-6, atol=1e-6, rtol=1e-4)
