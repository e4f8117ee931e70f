"""Raw operators called with wrong sizes, dtypes, devices, strides and numbers: an error or a result, never a crash.

`make sanitize` runs the same cases with every access checked.
"""

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from entformer.kernels.attention import ops as attention_ops
from entformer.kernels.entmax import ops as entmax_ops

pytestmark = pytest.mark.usefixtures("poisoned_memory", "kernels")

CASES = 2000
EACH = 200
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.complex64]
INTEGERS = [0, 1, -1, 7, 2**20, 2**30, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63)]
NUMBERS = [0.0, 1.0, -1.0, 0.5, 2.0, math.nan, math.inf, -math.inf, 1e300]


def attention_arguments(draw: random.Random) -> tuple[Any, ...]:
    batch, heads, group = draw.choice([1, 2, 3]), draw.choice([1, 2, 3]), draw.choice([1, 2])
    queries, keys, size, value_size = (draw.choice([1, 2, 5, 17, 40]) for _ in range(4))
    seed = torch.Generator().manual_seed(draw.randrange(1000))
    q = torch.randn(batch, heads * group, queries, size, generator=seed)
    k, v = torch.randn(batch, heads, keys, size, generator=seed), torch.randn(batch, heads, keys, value_size, generator=seed)
    alpha = torch.full(q.shape[:2], draw.choice([1.0, 1.3, 1.5, 2.0, 2.5]), dtype=torch.float64)
    mask = torch.rand(*q.shape[:3], keys, generator=seed) < 0.8 if draw.random() < 0.5 else None
    key_mask = torch.rand(batch, keys, generator=seed) < 0.8 if draw.random() < 0.5 else None
    slopes = torch.rand(q.shape[:2], generator=seed) if draw.random() < 0.5 else None
    how = (draw.choice(["relu", "sigmoid", *["entmax"] * 4]), 0.3, draw.random() < 0.5, draw.randint(-3, 3))
    features: list[Any] = [None] * 8
    if draw.random() < 0.7:
        shape = [size if draw.random() < 0.6 else 1 for size in (batch, heads * group, queries, keys)]
        if draw.random() < 0.5:
            features[0] = torch.randn(shape, generator=seed)
        if draw.random() < 0.4 and how[0] == "entmax":
            features[1] = torch.randn(q.shape[:2], generator=seed)
        if draw.random() < 0.4:
            features[2:4] = (torch.tensor([0, draw.randint(0, n), n], dtype=torch.int32) for n in (queries, keys))
        features[4:6] = (draw.choice([None, 0, 2, 50]) for _ in range(2))
        features[6], features[7] = draw.choice([None, 2.0]), draw.choice([None, -1.0])
    dropout = (draw.choice([0.0, 0.4]), torch.tensor(5))
    return q, k, v, alpha, mask, key_mask, slopes, *how, *dropout, draw.random() < 0.5, *features


def backward_arguments(draw: random.Random) -> tuple[Any, ...]:
    given = attention_arguments(draw)
    out, row_max, threshold, size, _entropy, reserve = attention_ops.attention(*given)
    if draw.random() < 0.3:
        row_max = torch.where(torch.rand(row_max.shape) < 0.3, draw.choice([math.nan, math.inf, 1e30, -5.0]), row_max)
    if draw.random() < 0.3:
        threshold = torch.where(torch.rand(threshold.shape) < 0.3, draw.choice([math.nan, math.inf, 1e300, -0.1]), threshold)
    if draw.random() < 0.3:
        size = torch.randint(0, given[1].shape[2] + 1, size.shape, dtype=torch.int32)
    if draw.random() < 0.3:
        reserve = torch.randint(0, 256, (*reserve.shape[:3], draw.choice([0, 4, 33, 100])), dtype=torch.uint8)
    needs = (given[14] is not None, given[15] is not None, given[6] is not None)
    state = (row_max, threshold, size, reserve)
    return torch.ones_like(out), *given[:7], *state, *given[7:13], draw.random() < 0.5, *given[14:], *needs


def support_arguments(draw: random.Random) -> tuple[Any, ...]:
    given = attention_arguments(draw)
    _out, row_max, threshold, size, _entropy, _reserve = attention_ops.attention(*given)
    crow = torch.nn.functional.pad(size.flatten().long().cumsum(0), (1, 0))
    if draw.random() < 0.3:
        crow = crow + torch.randint(-3, 4, crow.shape)
    return given[0], given[1], *given[3:7], row_max, threshold, crow, *given[7:11], *given[14:]


def support_backward_arguments(draw: random.Random) -> tuple[Any, ...]:
    given = support_arguments(draw)
    count = max(int(given[8][-1]), 0)
    needs = (draw.random() < 0.5, given[13] is not None, given[14] is not None, given[5] is not None)
    return torch.ones(count), *given, *needs


def entmax_arguments(draw: random.Random) -> tuple[Any, ...]:
    shape = tuple(draw.choice([1, 2, 3, 17]) for _ in range(draw.randint(1, 3)))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(draw.randrange(1000)))
    return x, torch.full(shape[:-1], draw.choice([1.0, 1.3, 1.5, 2.0, 3.0]), dtype=torch.float64)


def entmax_backward_arguments(draw: random.Random) -> tuple[Any, ...]:
    x, alpha = entmax_arguments(draw)
    return torch.ones_like(x), x.softmax(-1), alpha, draw.random() < 0.5


OPERATORS: list[tuple[Any, Callable[[random.Random], tuple[Any, ...]]]] = [
    (attention_ops.attention, attention_arguments),
    (attention_ops.attention_backward, backward_arguments),
    (attention_ops.attention_support, support_arguments),
    (attention_ops.attention_support_backward, support_backward_arguments),
    (entmax_ops.entmax, entmax_arguments),
    (entmax_ops.entmax_backward, entmax_backward_arguments),
]


def spoil_tensor(draw: random.Random, t: Tensor) -> Tensor:
    """The same tensor but for its size, rank, dtype, device, strides or memory."""
    kind = draw.choice(
        ["size", "size", "rank", "dtype", "meta", "expanded", "strided", "overlapping", "empty", "freed", "transposed"]
    )
    dim = draw.randrange(t.dim()) if t.dim() else 0
    if kind == "size" and t.dim():
        sizes = list(t.shape)
        sizes[dim] = draw.choice([0, 1, sizes[dim] + 1, max(sizes[dim] - 1, 0), 2 * sizes[dim], 3, 64])
        return torch.ones(sizes).to(t.dtype)
    if kind == "rank":
        return t.unsqueeze(dim) if draw.random() < 0.5 or not t.dim() else t.select(dim, 0) if t.shape[dim] else t
    if kind == "dtype":
        return t.to(draw.choice(DTYPES))
    if kind == "meta":
        return t.to("meta")
    if kind == "expanded" and t.dim():  # valid: stride 0
        return t.narrow(dim, 0, min(t.shape[dim], 1)).expand(t.shape) if t.shape[dim] else t
    if kind == "strided":  # valid: every second element
        return t.repeat_interleave(2, -1)[..., ::2] if t.dim() else t
    if kind == "overlapping" and t.numel():  # valid: windows into each other
        return t.flatten()[:1].expand(sum(t.shape) + 1).clone().as_strided(t.shape, [1] * t.dim())
    if kind == "empty":
        return t.new_empty(0)
    if kind == "freed":  # as sharding frees parameters
        t = t.clone()
        t.untyped_storage().resize_(0)
        return t
    if kind == "transposed" and t.dim() > 1:
        return t.transpose(dim, draw.randrange(t.dim()))
    return t


def spoil(draw: random.Random, value: Any) -> Any:
    if isinstance(value, Tensor):
        return spoil_tensor(draw, value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return draw.choice(["", "softmax", value])
    return draw.choice(INTEGERS) if isinstance(value, int) else draw.choice(NUMBERS)


@pytest.mark.parametrize("first", range(0, CASES, EACH))
def test_an_error_or_a_result_but_never_a_crash(first: int) -> None:
    errors = []
    for number in range(first, first + EACH):
        draw = random.Random(number)
        torch.manual_seed(number)
        operator, make = OPERATORS[number % len(OPERATORS)]
        arguments = list(make(draw))
        for at in draw.sample(range(len(arguments)), draw.choice([1, 1, 2])):
            arguments[at] = spoil(draw, arguments[at])
        try:
            operator(*arguments)
        except Exception as problem:
            errors.append(f"case {number}: {problem}")
    assert len(errors) > EACH // 5  # much of what is spoiled is noticed
    assert not [text for text in errors if ".cpp" in text]


def test_strides_of_zero_are_read_as_such() -> None:
    """vmap of a gradient passes the state of the rows and the reserve expanded, not copied."""
    given = attention_arguments(random.Random(3))
    given = (*(t[:1] if isinstance(t, Tensor) and t.dim() else t for t in given[:7]), *given[7:11], 0.0, *given[12:14])
    out, row_max, threshold, size, _entropy, reserve = attention_ops.attention(*given)
    saved = (row_max, threshold, size, reserve)
    ones = torch.ones_like(out)
    once = attention_ops.attention_backward(ones, *given[:7], *saved, *given[7:13], True)
    twice = [t.expand(2, *t.shape[1:]) if isinstance(t, Tensor) and t.dim() else t for t in (ones, *given[:7], *saved)]
    both = attention_ops.attention_backward(*twice, *given[7:13], True)
    for one, two in zip(once, both, strict=True):
        assert torch.equal(two, one.expand(two.shape))


ONE, TWO = torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
MANY = torch.ones(1, 1, 1, 1).expand(1, 1, 2**33, 1)
REFUSED: list[tuple[dict[int, Any], str]] = [
    ({0: torch.ones(1, 2, 5, 8), 1: torch.ones(1, 3, 5, 8), 2: torch.ones(1, 3, 5, 8), 3: TWO}, "the 2 heads of query must be"),
    ({0: MANY[:, :, :1], 1: MANY, 2: MANY, 3: ONE}, "at most 536870912 queries and keys are possible"),
    *(({10: offset}, "causal_offset must lie between") for offset in (2**63 - 1, -(2**63), 2**31)),
    *(({11: dropout}, "dropout_p must lie between 0 and 1") for dropout in (math.nan, -0.1, 1.5, math.inf)),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_what_is_refused_is_named(changes: dict[int, Any], message: str) -> None:
    arguments = list(attention_arguments(random.Random(0)))
    arguments[4:7] = [None] * 3
    for at, value in changes.items():
        arguments[at] = value
    with pytest.raises(RuntimeError, match=f"attention: {message}"):
        attention_ops.attention(*arguments)
