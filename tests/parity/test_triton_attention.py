"""`impl="triton"` in Triton's interpreter against `impl="reference"` in float64: output and every gradient, every feature.

The tolerance: float32 arithmetic on scores of size 1 is off by some units in 1e-7, which the sums over keys and the solver's
stopping rule (1e-6 of the sum) turn into 1e-5 of the largest element. float16 has 2^-11 per rounding, of q k^T, of the
weights before the second product and of the result. For alpha > 2 weights are t^(1/e): the root of the rounding of t.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from interpreted import ONLY_INTERPRETED, use_blocks

from entformer.kernels.attention.api import Attention, attention

pytestmark = [ONLY_INTERPRETED, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

TOLERANCE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 3e-2}
MIXTURE = (1.0, 1.25, 1.5, 2.0)
GRADIENTS = ("query", "key", "value", "alpha", "attn_mask", "sinks", "alibi_slopes")


def problem(
    lengths: tuple[int, int] = (19, 37), heads: tuple[int, int] = (2, 2), sizes: tuple[int, int] = (16, 16), batch: int = 1
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(sum(lengths) + sum(sizes))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "query": normal(batch, heads[0], lengths[0], sizes[0]),
        "key": normal(batch, heads[1], lengths[1], sizes[0]),
        "value": normal(batch, heads[1], lengths[1], sizes[1]),
    }


def run(tensors: dict[str, Tensor], how: dict[str, Any], impl: str, dtype: torch.dtype, seed: int) -> dict[str, Tensor]:
    """Output and gradients; `how` may hold tensors that get one."""
    exact = impl == "reference"
    given = tensors | {name: value for name, value in how.items() if isinstance(value, Tensor)}
    leaves = {}
    for name, value in given.items():
        value = value.to(dtype) if name in ("query", "key", "value") else value
        value = value.double() if exact and value.is_floating_point() else value
        leaves[name] = value.clone().requires_grad_(name in GRADIENTS and value.is_floating_point())
    torch.manual_seed(seed)
    out = attention(**(how | leaves), enable_gqa=True, impl=impl)  # type: ignore[arg-type]
    assert isinstance(out, Tensor)
    grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    wanted = [name for name, leaf in leaves.items() if leaf.requires_grad]
    grads = torch.autograd.grad(out, [leaves[name] for name in wanted], grad)
    return {"output": out.detach()} | dict(zip(wanted, grads, strict=True))


def check(tensors: dict[str, Tensor], how: dict[str, Any], dtype: torch.dtype = torch.float32, tolerance: float = 0.0) -> None:
    ours, right = (run(tensors, how, impl, dtype, seed=3) for impl in ("triton", "reference"))
    assert ours.keys() == right.keys()
    for name, value in right.items():
        assert ours[name].shape == value.shape, name
        size = max(float(value.abs().max()), 1e-3)
        error = float((ours[name].double() - value.double()).abs().max()) / size
        assert error < (tolerance or TOLERANCE[dtype]), f"{name}: {error:.1e}"


def boolean(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.6


def number(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def dead_rows() -> Tensor:
    mask = boolean(1, 2, 19, 37)
    mask[:, :, 3:7] = False
    mask[:, 1, -1] = False
    return mask


FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "causal, cached keys": {"is_causal": True, "causal_offset": 18},
    "causal, rows without keys": {"is_causal": True, "causal_offset": -6},
    "key mask": {"key_mask": boolean(1, 37)},
    "boolean mask": {"attn_mask": boolean(1, 2, 19, 37)},
    "mask over heads, causal": {"attn_mask": boolean(19, 37), "is_causal": True, "causal_offset": 18},
    "rows without keys": {"attn_mask": dead_rows()},
    "bias": {"attn_mask": number(1, 2, 19, 37)},
    "bias over rows, with -inf": {"attn_mask": number(1, 1, 1, 37).masked_fill(~boolean(1, 1, 1, 37), -math.inf)},
    "alibi": {"alibi_slopes": torch.tensor([0.05, 0.3]), "is_causal": True, "causal_offset": 18},
    "window": {"window": (5, 3), "causal_offset": 9},
    "causal window": {"window": (6, None), "is_causal": True, "causal_offset": 18},
    "soft-cap": {"softcap": 2.0},
    "sinks": {"sinks": torch.tensor([0.5, -1.0])},
    "sinks, causal, rows without keys": {"sinks": torch.tensor([0.5, 2.0]), "is_causal": True, "causal_offset": -6},
    "packed": {"cu_seqlens_q": torch.tensor([0, 7, 7, 19]), "cu_seqlens_k": torch.tensor([0, 20, 26, 37])},
    "packed, causal": {
        "cu_seqlens_q": torch.tensor([0, 3, 19]),
        "cu_seqlens_k": torch.tensor([0, 15, 37]),
        "is_causal": True,
        "causal_offset": 2,
    },
    "dropout": {"dropout_p": 0.3},
    "all at once": {
        "attn_mask": number(1, 2, 19, 37),
        "key_mask": boolean(1, 37),
        "is_causal": True,
        "causal_offset": 15,
        "window": (12, 0),
        "softcap": 3.0,
        "sinks": torch.tensor([0.5, 0.0]),
        "alibi_slopes": torch.tensor([0.05, 0.3]),
        "dropout_p": 0.2,
    },
}


ALPHAS = (1.0, 1.0001, 1.25, 1.5, 2.0, 3.0, 1.75)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("name", FEATURES)
def test_every_feature(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of the alphas each, so that every feature meets four of them, and each of them several features in each dtype."""
    half = dtype == torch.float16
    number = 2 * list(FEATURES).index(name) + half
    several = not half and any(word in name for word in ("causal", "window", "packed", "all"))  # ranges of keys
    use_blocks(monkeypatch, 16 if several else 32, 32)
    how = FEATURES[name]
    packed = {key: how[key].int() for key in how if key.startswith("cu_")}
    alphas = [ALPHAS[number % len(ALPHAS)], ALPHAS[(2 * number + 3) % len(ALPHAS)]]
    check(problem(), how | packed | {"alpha": torch.tensor(alphas)}, dtype, tolerance=tolerance_of(alphas, dtype))


def tolerance_of(alphas: Sequence[float], dtype: torch.dtype) -> float:
    """For alpha > 2: the root of the rounding of t, 3e-4 in float32, and what gradients make of it."""
    if max(alphas) <= 2.0:
        return TOLERANCE[dtype]
    return 2e-3 if dtype == torch.float32 else 0.1


def test_sigmoid_with_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks(monkeypatch, 16, 32)
    how = {name: value for name, value in FEATURES["all at once"].items() if name != "sinks"}
    check(problem(), how | {"normalizer": "sigmoid", "sigmoid_bias": -1.0})


@pytest.mark.parametrize(
    "how",
    [
        {"alpha": 1.5},
        {"alpha": 2.0},
        {"normalizer": "softmax"},
        {"normalizer": "rela"},
        {"normalizer": "sigmoid"},
        {"alpha": 1.3},
    ],
    ids=lambda how: "-".join(map(str, how.values())),
)
def test_an_alpha_that_the_host_knows(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks(monkeypatch, 32, 32)
    mask = {"key_mask": boolean(1, 37)}  # which keeps softmax from torch's own attention
    check(problem(), how | mask)


def test_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks(monkeypatch, 32, 32)
    check(problem(), FEATURES["all at once"] | {"alpha": torch.tensor([1.25, 1.5])}, torch.bfloat16, tolerance=0.12)


@pytest.mark.parametrize(
    ("lengths", "heads", "sizes"),
    [
        ((1, 70), (4, 1), (16, 16)),
        ((33, 5), (2, 1), (24, 40)),
        ((64, 64), (1, 1), (64, 64)),
        ((3, 3), (1, 1), (7, 130)),
    ],
)
def test_shapes(
    lengths: tuple[int, int], heads: tuple[int, int], sizes: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_blocks(monkeypatch, 32, 32)
    alpha = torch.tensor(MIXTURE[: heads[0]])
    check(problem(lengths, heads, sizes), {"alpha": alpha, "is_causal": lengths[0] == lengths[1]})


def test_per_batch_alphas_and_strided_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks(monkeypatch, 32, 32)
    tensors = {name: t.transpose(1, 2).contiguous().transpose(1, 2) for name, t in problem((9, 11), batch=2).items()}
    tensors["value"] = tensors["value"].repeat_interleave(2, -1)[..., ::2]
    check(tensors, {"alpha": torch.tensor([[1.2, 1.5], [1.9, 1.0]])})


@pytest.mark.parametrize(
    "how", [{"alpha": 1.5}, {"alpha": torch.tensor([1.2, 1.8])}, {"normalizer": "rela"}, {"normalizer": "sigmoid"}], ids=str
)
def test_statistics_and_support(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks(monkeypatch, 32, 16)
    tensors = problem((9, 33))
    tensors["query"] *= 3.0
    ours, right = (
        attention(**tensors, **how, is_causal=True, causal_offset=20, return_stats=True, return_support=True, impl=impl)  # type: ignore[arg-type]
        for impl in ("triton", "reference")
    )
    assert isinstance(ours, Attention)
    assert isinstance(right, Attention)
    assert ours.stats is not None
    assert right.stats is not None
    assert ours.support is not None
    assert right.support is not None
    assert torch.equal(ours.stats.support_size, right.stats.support_size)
    assert torch.equal(ours.support.col, right.support.col)
    assert torch.equal(ours.support.crow, right.support.crow)
    close = {"rtol": 2e-5, "atol": 2e-5, "check_dtype": False, "equal_nan": True}
    torch.testing.assert_close(ours.support.weight, right.support.weight, **close)
    torch.testing.assert_close(ours.stats.entropy, right.stats.entropy, **close)
    torch.testing.assert_close(ours.stats.logsumexp, right.stats.logsumexp, **close)
