"""Position tables and slopes are no state of a module: nothing that is done to a module changes them."""

import functools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from entformer.nn import positions as encodings
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.positions import Positions, Rotary, Sinusoidal, alibi_slopes, get_slopes, nape_slopes

EMBED, HEADS = 16, 8
POSITIONS = ["rotary", "alibi", "nape"]
THREADS, CALLS = 8, 2000


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def layer(positions: str, **options: Any) -> MultiheadAttention:
    torch.manual_seed(0)
    return MultiheadAttention(EMBED, HEADS, batch_first=True, alpha=1.5, positions=positions, **options)


def attend(module: nn.Module, x: Tensor) -> Tensor:
    out: Tensor = module(x, x, x, need_weights=False)[0]
    return out


@pytest.fixture(autouse=True)
def no_tables() -> None:
    """Each test begins as a new process does."""
    encodings._tables.clear()


@pytest.mark.parametrize("positions", POSITIONS)
def test_modules_have_no_buffers(positions: str) -> None:
    module = layer(positions)
    attend(module, random(1, 100, EMBED))
    assert list(module.buffers()) == []
    assert not any(isinstance(value, Tensor) for part in module.modules() for value in vars(part).values())


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


def test_slopes_are_right_however_a_module_came_to_be() -> None:
    for name, expected in (("alibi", alibi_slopes(HEADS)), ("nape", nape_slopes(HEADS))):
        with torch.device("meta"):
            module = MultiheadAttention(EMBED, HEADS, positions=name)
        assert module.slopes is not None
        assert module.slopes.is_meta
        assert torch.equal(module.to_empty(device="cpu").slopes, expected)  # type: ignore[arg-type]
        assert torch.equal(nn.utils.skip_init(MultiheadAttention, EMBED, HEADS, positions=name).slopes, expected)
        with torch.device("meta"):
            module = MultiheadAttention(EMBED, HEADS, positions=name)
        module.load_state_dict(MultiheadAttention(EMBED, HEADS, positions=name).state_dict(), assign=True)
        assert torch.equal(module.slopes, expected)  # type: ignore[arg-type]


def test_what_slopes_returns_may_be_changed() -> None:
    module = layer("alibi")
    slopes = module.slopes
    assert slopes is not None
    slopes.zero_()
    assert torch.equal(module.slopes, alibi_slopes(HEADS))  # type: ignore[arg-type]


def test_the_number_of_kept_tables_is_bounded() -> None:
    for base in range(encodings.MAX_TABLES + 5):
        Rotary(4, 100.0 + base)(random(1, 1, 3, 4))
    assert len(encodings._tables) <= encodings.MAX_TABLES
    short = get_slopes(Positions("nape", share=1.0), 100)
    assert short is not None
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
        for _ in range(CALLS // THREADS):
            encodings._tables.clear()
            outputs = list(pool.map(functools.partial(call, layer("rotary")), inputs))
            assert all(torch.equal(a, b) for a, b in zip(outputs, expected, strict=True))
