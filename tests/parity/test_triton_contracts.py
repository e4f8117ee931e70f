"""What the Triton kernels promise beside numbers: blocks visited, steps of the solver, dropout bits, NaN, operator checks."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

sys.path.insert(0, str(Path(__file__).parent))
from interpreted import ONLY_INTERPRETED, use_blocks

from entformer.compat import adasplash
from entformer.kernels.attention import ops
from entformer.kernels.attention.api import Attention, attention
from entformer.kernels.attention.reference import keep_mask
from entformer.kernels.registry import resolve

pytestmark = [ONLY_INTERPRETED, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


def local_problem(length: int, size: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    """Queries whose scores fall off with the distance: supports are narrow bands, and most blocks hold none."""
    generator = torch.Generator().manual_seed(0)
    angle = 6.0 * torch.arange(length) / length
    place = torch.stack([angle.cos(), angle.sin()], -1)  # (L, 2)
    q, k, v = (0.1 * torch.randn(1, 1, length, size, generator=generator) for _ in range(3))
    q[..., :2] += 16.0 * place
    k[..., :2] += 16.0 * place
    return q, k, v


def blocks_with_support(weights: Tensor, rows: int, columns: int) -> Tensor:
    length_q, length_k = weights.shape[-2:]
    padded = F.pad(weights, (0, -length_k % columns, 0, -length_q % rows))
    return padded.unflatten(-1, (-1, columns)).unflatten(-3, (-1, rows)).gt(0).any(-1).any(-2)


def dense_weights(q: Tensor, k: Tensor, **how: Any) -> Tensor:
    """The weights themselves: the output for the identity as values."""
    eye = torch.eye(k.shape[2]).expand(1, 1, -1, -1)
    out = attention(q.double(), k.double(), eye.double(), impl="reference", **how)
    assert isinstance(out, Tensor)
    return out


@pytest.mark.parametrize("how", [{"alpha": 1.5}, {"alpha": 1.5, "is_causal": True}, {"alpha": 2.0}], ids=str)
def test_blocks_visited_are_the_blocks_with_support(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from entformer.kernels.attention.triton import launch

    use_blocks(monkeypatch, 16, 16)
    q, k, v = local_problem(72)
    listed = []
    original = launch.Plan.lists

    def recorded(self: Any, blocks: Tensor, **by: Any) -> tuple[Tensor, Tensor]:
        found = original(self, blocks, **by)
        listed.append(found[1])
        return found

    monkeypatch.setattr(launch.Plan, "lists", recorded)
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    with launch.counting() as counts:
        out = attention(*leaves, impl="triton", **how)
        assert isinstance(out, Tensor)
    out.sum().backward()
    right = blocks_with_support(dense_weights(q, k, **how), 16, 16)
    scouted, _steps, live, used = counts[0].unbind(-1)
    assert torch.equal(used[0, 0].long(), right[0, 0].sum(-1))  # forward
    assert torch.equal(listed[1][0, 0].long(), right[0, 0].sum(-1))  # dQ
    assert torch.equal(listed[2][0, 0].long(), right[0, 0].sum(-2))  # dK and dV
    assert right.float().mean() < 0.6
    assert bool((used <= live).all() and (live <= scouted).all())
    assert int(scouted.sum()) == (15 if "is_causal" in how else 25)


def test_products_and_bytes_are_those_of_the_cost_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    from entformer.bench import gpu_cost
    from entformer.kernels.attention.triton import launch

    length, size, queries, keys = 64, 16, 16, 32
    use_blocks(monkeypatch, queries, keys)
    products, loads = [], []
    multiply, load = InterpreterBuilder.create_dot, InterpreterBuilder.create_masked_load

    def counted_dot(self: Any, *operands: Any) -> Any:
        products.append(1)
        return multiply(self, *operands)

    def counted_load(self: Any, pointers: Any, *rest: Any) -> Any:
        found = load(self, pointers, *rest)
        if found.data.shape == (keys, size):  # of keys or values
            loads.append(found.data.size)
        return found

    monkeypatch.setattr(InterpreterBuilder, "create_dot", counted_dot)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", counted_load)
    leaves = [t.requires_grad_() for t in local_problem(length, size)]
    saved: list[Tensor] = []

    def packed(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with launch.counting() as counts, torch.autograd.graph.saved_tensors_hooks(packed, lambda tensor: tensor):
        out = attention(*leaves, alpha=1.5, impl="triton")
    dense, steps, live, held = counts[0].unbind(-1)
    solved = int((steps * live).sum())
    assert isinstance(out, Tensor)
    assert len(products) == gpu_cost.forward_products(int(dense.sum()) + solved, int(live.sum()), int(held.sum()), 0)
    everything = int(dense.sum())
    fractions = (1 + solved / everything, int(live.sum()) / everything, int(held.sum()) / everything)
    assert 2 * sum(loads) == gpu_cost.bytes_read(length, size, queries, *fractions, 0)  # of 2 bytes an element
    products.clear()
    out.sum().backward()
    assert len(products) == gpu_cost.backward_products(int(held.sum()), size)
    state = [t for t in saved if t.dim() == 3 or t.dtype == torch.uint8]  # the rest are inputs
    assert sum(t.numel() * t.element_size() for t in state) == gpu_cost.bytes_saved(length, queries, keys)


ALPHAS = (1.25, 1.5, 1.75, 2.0)
ROWS = {torch.float16: 64, torch.float32: 32}  # queries per block, as on a GPU


def steps_of(q: Tensor, k: Tensor, dtype: torch.dtype, **how: Any) -> Tensor:
    """Steps of the solver per block of queries, a row per alpha; q and k (1, 1, L, D)."""
    from entformer.kernels.attention.triton import launch

    q, k = (t.to(dtype).expand(-1, len(ALPHAS), -1, -1) for t in (q, k))
    with launch.counting() as counts:
        attention(q, k, k, alpha=torch.tensor(ALPHAS), impl="triton", **how)
    return counts[0][0, :, :, 1].float()


@pytest.mark.parametrize("dtype", ROWS, ids=str)
@pytest.mark.parametrize("spread", [0.2, 1.0, 4.0])
def test_the_solver_takes_three_steps_or_fewer_on_average(
    spread: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_blocks(monkeypatch, ROWS[dtype], 128)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, n, 16, generator=generator) for n in (64, 256))
    steps = steps_of(q, k, dtype, scale=spread / 4.0)
    assert steps.mean() <= 3.0
    assert steps.max() <= 4


def trained_head(length: int) -> tuple[Tensor, Tensor]:
    """Queries and keys of a head that was trained to find the token before the last occurrence of the current one."""
    generator = torch.Generator().manual_seed(0)
    size, tokens = 16, 12
    shapes = {"token": (tokens, size), "before": (tokens, size), "place": (length, size), "value": (tokens, tokens)}
    parts = {name: 0.3 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    matrices = [torch.randn(size, size, generator=generator) / 4.0 for _ in range(2)]
    leaves = [t.requires_grad_() for t in (*parts.values(), *matrices)]
    optimizer = torch.optim.Adam(leaves, lr=0.03)
    hidden = torch.ones(length, length, dtype=torch.bool).triu()
    hidden[0, 0] = False
    losses = []
    for _ in range(150):
        text = torch.randint(tokens, (8, length), generator=generator)
        x = parts["token"][text] + 0.3 * parts["place"]
        q, k = x @ matrices[0], (x + parts["before"][text.roll(1, 1)]) @ matrices[1]
        weights = (4.0 * q @ k.mT / math.sqrt(size)).masked_fill(hidden, -math.inf).softmax(-1)
        loss = F.cross_entropy((weights @ parts["value"][text])[:, 40:].flatten(0, 1), text.roll(1, 1)[:, 40:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.5 * losses[0]
    return 4.0 * q[:1, None].detach(), k[:1, None].detach()


def test_steps_on_the_scores_of_a_trained_head(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = trained_head(128)
    for dtype, rows in ROWS.items():
        use_blocks(monkeypatch, rows, 64)
        steps = steps_of(q, k, dtype, is_causal=True)
        assert steps.mean() <= 3.0
        assert steps.max() <= 4


class NoValues(TorchDispatchMode):
    """Raises where a value of a tensor decides something on the host, for which a GPU would have to finish first."""

    WAITS = ("_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select", "unique", "_unique2")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func._schema.name.split("::")[1] not in self.WAITS, func
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("packed", [False, True])
def test_the_host_does_not_wait(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from entformer.kernels import checks
    from entformer.kernels.entmax.triton.launches import recording

    monkeypatch.setattr(checks, "values_are_readable", lambda tensor: False)  # as on a GPU
    q, k, bias, alpha, sinks, slopes = (
        torch.ones(shape).requires_grad_() for shape in ((1, 4, 70, 16), (1, 2, 90, 16), (1, 1, 70, 90), (4,), (4,), (4,))
    )
    boundaries = torch.tensor([[0, 30, 70], [0, 50, 90]], dtype=torch.int32)
    more = {"cu_seqlens_q": boundaries[0], "cu_seqlens_k": boundaries[1]} if packed else {"key_mask": torch.ones(1, 90).bool()}
    learned = {"alpha": alpha, "sinks": sinks, "alibi_slopes": slopes}
    with recording() as launches, NoValues():
        out = attention(q, k, k, bias, 0.1, True, enable_gqa=True, window=(9, 9), softcap=3.0, **learned, **more, impl="triton")
        assert isinstance(out, Tensor)
        torch.autograd.grad(out.sum(), [q, k, bias, alpha, sinks, slopes])
    names = [entry.kernel.__name__ for entry in launches]
    assert names == ["scout", "list_blocks", "solve", "output", "list_blocks", "back_q", "list_blocks", "back_kv"]


def test_both_backends_drop_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks(monkeypatch, 32, 32)
    q = torch.zeros(2, 2, 9, 16)
    eye = torch.eye(21).expand(2, 2, -1, -1).contiguous()
    k = torch.zeros(2, 2, 21, 16)
    for seed in (0, 2**62 - 1):
        numbers = (1.0, False, 0, 0.4, torch.tensor(seed), False)
        out = ops.attention(q, k, eye, torch.full((2, 2), 1.5, dtype=torch.float64), None, None, None, "entmax", *numbers)[0]
        assert torch.equal(out > 0, keep_mask(torch.Size((2, 2, 9, 21)), 0.4, torch.tensor(seed)))


def test_two_runs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks(monkeypatch, 32, 32)
    found = []
    for _ in range(2):
        leaves = [t.clone().requires_grad_() for t in local_problem(40)]
        alpha = torch.tensor([1.4], requires_grad=True)
        out = attention(*leaves, alpha=alpha, impl="triton")
        assert isinstance(out, Tensor)
        found.append([out.detach(), *torch.autograd.grad(out.cos().sum(), [*leaves, alpha])])
    for first, second in zip(*found, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("garbage", [math.nan, math.inf])
@pytest.mark.parametrize("kind", ["padding", "boolean", "causal"])
def test_what_is_masked_does_not_exist(kind: str, garbage: float, monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks(monkeypatch, 16, 16)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, 16, generator=generator) for n in (9, 24, 24))
    masked = torch.arange(24) >= 9
    pairs = ~masked.expand(9, -1)
    masks: dict[str, dict[str, Any]] = {
        "padding": {"key_mask": ~masked[None]},
        "boolean": {"attn_mask": pairs},
        "causal": {"is_causal": True},
    }
    found = []
    for filled in (0.0, garbage):
        leaves = [q, *(torch.where(masked[:, None], filled, t) for t in (k, v))]
        leaves = [t.clone().requires_grad_() for t in leaves]
        out = attention(*leaves, alpha=1.5, impl="triton", **masks[kind])
        assert isinstance(out, Tensor)
        found.append([out.detach(), *torch.autograd.grad(out.sum(), leaves)])
    for clean, dirty in zip(*found, strict=True):
        torch.testing.assert_close(dirty, clean)


def test_nan_stays_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks(monkeypatch, 16, 16)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, 16, generator=generator) for n in (9, 24, 24))
    q[0, 0, 4, 3] = math.nan
    found = {}
    for impl in ("triton", "reference"):
        leaves = [t.clone().requires_grad_() for t in (q, k, v)]
        out = attention(*leaves, alpha=1.5, is_causal=True, impl=impl)  # type: ignore[arg-type]
        assert isinstance(out, Tensor)
        found[impl] = [out.detach(), *torch.autograd.grad(out.sum(), leaves)]
    for ours, right in zip(found["triton"], found["reference"], strict=True):
        torch.testing.assert_close(ours, right, rtol=1e-4, atol=1e-5, equal_nan=True)


def test_torchs_checks_of_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks(monkeypatch, 32, 32)
    q, k, v = (torch.randn(1, 2, n, 16, requires_grad=True) for n in (5, 9, 9))
    alpha = torch.full((1, 2), 1.3, dtype=torch.float64, requires_grad=True)
    inputs = (q, k, v, alpha, None, None, None, "entmax", 0.25, True, 4, 0.0, torch.tensor(0), True)
    torch.library.opcheck(ops.attention, inputs)


def test_a_compiled_program_has_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks(monkeypatch, 32, 32)
    q = torch.randn(1, 2, 5, 16, generator=torch.Generator().manual_seed(0))

    def attend(query: Tensor) -> Tensor | Attention:
        return attention(query, query, query, alpha=1.4, impl="triton")

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q), attend(q))


def test_offsets_inside_a_block_fit_into_32_bits() -> None:
    from entformer.kernels.attention.triton import launch

    distant = torch.empty(2 * 2**25 + 16, dtype=torch.uint8).as_strided((1, 1, 3, 16), (0, 0, 2**25, 1))
    assert launch.rows_of(distant).row == 16
    assert launch.rows_of(distant[:, :, :, ::2]).ptr.stride(-1) == 1


def test_adasplash_has_its_semantics_here(monkeypatch: pytest.MonkeyPatch) -> None:
    use_blocks(monkeypatch, 32, 32)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, h, 33, 16, generator=generator) for h in (2, 1, 1))
    lengths = torch.tensor([33, 12])
    found = []
    for dtype in (torch.float32, torch.float64):  # the kernels; the definition, tested in test_compat_adasplash.py
        leaves = [t.to(dtype).requires_grad_() for t in (q, k, v)]
        out = adasplash(*leaves, varlen=lengths)
        found.append([out.detach(), *torch.autograd.grad(out.cos().sum(), leaves)])
    for ours, right in zip(*found, strict=True):
        torch.testing.assert_close(ours.double(), right, rtol=1e-4, atol=1e-5)


def test_the_interpreter_takes_the_cpu() -> None:
    assert resolve("auto", "cpu") == "triton"
