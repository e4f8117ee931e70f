"""Positions: added, turned or biased. Distances are all that rotary and ALiBi see; tables have no end."""

import functools
import math
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from entformer.errors import ArgumentError
from entformer.nn import positions as encodings
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.positions import Positions, Rotary, Sinusoidal, alibi_slopes, get_slopes, nape_slopes

from .tensors import random

EMBED, HEADS = 16, 8
POSITIONS = ["rotary", "alibi", "nape"]
THREADS, ROUNDS = 8, 250


@pytest.fixture(autouse=True)
def no_tables() -> None:
    """Each test begins as a new process does."""
    encodings._tables.clear()


def layer(positions: str) -> MultiheadAttention:
    torch.manual_seed(0)
    return MultiheadAttention(EMBED, HEADS, batch_first=True, alpha=1.5, positions=positions)


def attend(module: nn.Module, x: Tensor) -> Tensor:
    return module(x, x, x, need_weights=False)[0]


def test_sinusoidal_is_sines_then_cosines() -> None:
    table = Sinusoidal(6)(3)
    for t in range(3):
        angles = [t / 10000 ** (2 * i / 6) for i in range(3)]
        expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        torch.testing.assert_close(table[t], torch.tensor(expected))


@pytest.mark.parametrize("width", [1, 5, 8])
def test_sinusoidal_has_no_longest_sequence(width: int) -> None:
    module = Sinusoidal(width)
    short = module(4).clone()
    long = module(5000, 10)
    assert long.shape == (5000, width)
    assert torch.equal(module(4), short)
    assert torch.equal(module(2, 2), short[2:4])
    assert list(module.state_dict()) == []


def test_rotary_scores_depend_on_the_distance_alone() -> None:
    rotary, generator = Rotary(8), torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 2, 1, 8, generator=generator) for _ in range(2))

    def score(i: int, j: int) -> Tensor:
        return (rotary(q, i) * rotary(k, j)).sum(-1)

    torch.testing.assert_close(score(7, 3), score(104, 100), rtol=0.0, atol=1e-5)
    assert not torch.allclose(score(7, 3), score(7, 4))
    torch.testing.assert_close(rotary(q, 50).norm(), q.norm())
    assert torch.equal(rotary(q, 0), q)


def test_alibi_slopes_are_those_of_the_paper() -> None:
    torch.testing.assert_close(alibi_slopes(8), 2.0 ** -torch.arange(1.0, 9.0))
    expected = [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]
    torch.testing.assert_close(alibi_slopes(6), torch.tensor(expected))
    assert alibi_slopes(1).tolist() == [2.0**-8]


def test_nape_biases_the_first_half_or_another_share() -> None:
    torch.testing.assert_close(nape_slopes(5), torch.tensor([1.0, 0.5, 0.0, 0.0, 0.0]))
    assert nape_slopes(1).tolist() == [0.0]
    assert nape_slopes(8, "exponential").tolist() == [1.0, 0.5, 0.25, 0.125, 0.0, 0.0, 0.0, 0.0]
    assert nape_slopes(10, share=0.3).count_nonzero() == 3
    assert nape_slopes(4, share=0.0).tolist() == [0.0] * 4
    assert nape_slopes(4, share=1.0).count_nonzero() == 4
    torch.testing.assert_close(get_slopes(Positions("nape", share=0.25), 8), nape_slopes(8, share=0.25))


def test_a_raised_base_turns_more_slowly() -> None:
    t = torch.randn(1, 1, 1, 8, generator=torch.Generator().manual_seed(0))
    usual, raised = Rotary(8), Rotary(8, 5e5)
    assert (raised(t, 100) - t).norm() < (usual(t, 100) - t).norm()
    slowest = 100 / 5e5 ** (6 / 8)
    expected = t[..., 3] * math.cos(slowest) - t[..., 7] * math.sin(slowest)
    torch.testing.assert_close(raised(t, 100)[..., 3], expected)


@pytest.mark.parametrize("wrong", [{"base": 1.0}, {"slopes": "steep"}, {"share": 1.5}, {"kind": "polar"}])
def test_invalid_positions_raise(wrong: dict[str, object]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(wrong)).replace("kind", "positions")):
        Positions(**wrong)  # type: ignore[arg-type]


def test_invalid_arguments_raise() -> None:
    assert get_slopes("none", 4) is None
    with pytest.raises(ArgumentError, match=r"'learned'.*rotary, alibi, nape"):
        get_slopes("learned", 4)
    with pytest.raises(ArgumentError, match="head size 5 must be even"):
        Rotary(5)


# ---- tables are no state of a module ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_tables_have_float32_or_better(dtype: torch.dtype) -> None:
    wide = torch.promote_types(dtype, torch.float32)
    x = random(1, 1, 3, 8).to(dtype)
    exact = Rotary(8)(x.double(), 50000)
    torch.testing.assert_close(Rotary(8)(x, 50000), exact.to(dtype))
    table = Sinusoidal(8)(3, 50000, like=x)
    assert table.dtype == wide
    torch.testing.assert_close(table, Sinusoidal(8)(3, 50000, like=x.double()).to(wide), rtol=0.0, atol=torch.finfo(wide).eps)


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_pass_with_fake_tensors_leaves_nothing_behind(positions: str) -> None:
    module, x = layer(positions), random(1, 5, EMBED)
    expected = attend(module, x)
    encodings._tables.clear()
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert attend(module, mode.from_tensor(x)).shape == x.shape
    out = attend(module, x)
    assert type(out) is Tensor
    assert torch.equal(out, expected)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:  # now that tables are kept
        assert attend(module, mode.from_tensor(x)).shape == x.shape


@pytest.mark.parametrize("positions", POSITIONS)
def test_a_pass_inside_a_transform_leaves_nothing_behind(positions: str) -> None:
    module, x = layer(positions), random(2, 5, EMBED)
    expected = attend(module, x)
    encodings._tables.clear()
    torch.func.grad(lambda t: attend(module, t).sum())(x)
    torch.func.vmap(lambda t: attend(module, t))(x[None])
    assert all(torch.func.debug_unwrap(t) is t for kept in encodings._tables.values() for t in kept)
    assert torch.equal(attend(module, x), expected)


def test_what_slopes_returns_may_be_changed() -> None:
    module = layer("alibi")
    slopes = module.slopes
    slopes.zero_()
    assert torch.equal(module.slopes, alibi_slopes(HEADS))  # type: ignore[arg-type]


def test_the_number_of_kept_tables_is_bounded() -> None:
    for base in range(encodings.MAX_TABLES + 5):
        Rotary(4, 100.0 + base)(random(1, 1, 3, 4))
    assert len(encodings._tables) <= encodings.MAX_TABLES
    short = get_slopes(Positions("nape", share=1.0), 100)
    assert torch.equal(short, nape_slopes(100, share=1.0))


def test_threads_share_one_module_while_lengths_grow(request: pytest.FixtureRequest) -> None:
    """In every round the threads start together on a new module without tables, each with its own length."""
    request.addfinalizer(functools.partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)  # switch threads inside a forward pass, not only around it
    inputs = [random(1, length, EMBED, seed=length) for length in (8, 70, 140, 300, 9, 71, 141, 301)]
    with torch.no_grad():
        expected = [attend(layer("rotary"), x) for x in inputs]
    barrier = threading.Barrier(THREADS)

    def call(module: nn.Module, x: Tensor) -> Tensor:
        barrier.wait(60.0)
        with torch.no_grad():
            return attend(module, x)

    # A new thread takes on torch.set_num_threads() at its first call of get_num_threads(). Before that, nn.Linear may run on
    # another number of threads than in the main thread, and round otherwise.
    with ThreadPoolExecutor(THREADS, initializer=torch.get_num_threads) as pool:
        for _ in range(ROUNDS):
            encodings._tables.clear()
            outputs = list(pool.map(functools.partial(call, layer("rotary")), inputs))
            assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))
