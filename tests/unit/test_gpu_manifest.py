"""The compile manifest and the cost model of GPU kernels."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode

from entformer.bench import gpu_cost
from entformer.bench.compile_gpu import TARGETS, Resources, manifest, occupancy, table
from entformer.bench.gpu_variants import HOT
from entformer.bench.harness import installed_version
from entformer.errors import ImplUnavailable
from entformer.kernels import triton_host
from entformer.kernels.attention.api import attention
from entformer.kernels.registry import resolve


@pytest.mark.parametrize(
    ("target", "warps", "registers", "shared", "share"),
    [
        ("sm_80", 4, 255, 16 * 1024, 0.125),  # 2 blocks of 4 warps, of 64
        ("sm_80", 4, 128, 16 * 1024, 0.25),
        ("sm_80", 4, 32, 80 * 1024, 0.125),  # 164 KiB hold two
        ("sm_90", 4, 32, 80 * 1024, 0.125),
        ("sm_90", 8, 64, 0, 0.5),
        ("gfx942", 4, 256, 8 * 1024, 0.25),  # 2 waves on each of 4 SIMDs, of 8
        ("gfx942", 4, 300, 8 * 1024, 0.125),
        ("gfx942", 4, 64, 40 * 1024, 0.125),  # 64 KiB hold one
    ],
)
def test_occupancy(target: str, warps: int, registers: int, shared: int, share: float) -> None:
    assert occupancy(TARGETS[target], warps, registers, shared) == share


def test_table_marks_failures() -> None:
    good = Resources(HOT[0], "sm_80", 100, 0, 2048, 0.5, None)
    bad = Resources(HOT[0], "gfx942", 300, 8, 2048, 0.125, "spills 8 registers")
    assert table([good, bad]) == [
        "| variant | sm_80 | gfx942 |",
        "|---|---|---|",
        f"| {HOT[0]} | 100/0, 2 KiB, 50% | **300/8, 2 KiB, 12%** |",
    ]


@pytest.mark.skipif(not triton_host.installed() or triton_host.interpreted(), reason="needs Triton's compiler")
def test_a_kernel_compiles_without_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    found = list(manifest([HOT[0]], ["sm_80", "gfx942"]))
    for entry in found:
        assert entry.failure is None
        assert entry.spilled == 0
        assert 0.1 < entry.occupancy <= 1.0
    page = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text(encoding="utf-8")
    if f"Triton {installed_version('triton')}:" in page:  # the version of its table
        lines = [line.split(" | ") for line in page.splitlines() if line.startswith(f"| {HOT[0]} |")]
        assert [[cells[0], cells[1], cells[4]] for cells in lines] == [table(found)[-1].split(" | ")]


def test_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_host, "installed", lambda: False)
    with pytest.raises(ImplUnavailable, match="the compile manifest needs Triton, which is not installed: pip install triton"):
        next(manifest(HOT, ["sm_80"]))


def test_the_cost_model() -> None:
    assert gpu_cost.forward_products(100, 30, 20, 2) == 210
    assert gpu_cost.backward_products(20, 64) == 160
    assert gpu_cost.relative_time(0.1) < gpu_cost.relative_time(0.5) < gpu_cost.relative_time(1.0)
    even = gpu_cost.break_even()
    assert gpu_cost.relative_time(even) == pytest.approx(1.0, abs=1e-6)
    assert gpu_cost.break_even(gpu_cost.FLASH3) < even


def test_softmax_on_a_gpu_is_torchs_own() -> None:
    from entformer.kernels.attention import sdpa
    from entformer.kernels.attention.arguments import Call, Features

    with FakeTensorMode():
        q = torch.empty(1, 2, 8, 16, dtype=torch.bfloat16, device="cuda")
    seed = torch.zeros((), dtype=torch.int64)
    call = Call(q, q, q, torch.ones(1, 2), None, None, None, "entmax", 0.25, True, 0, 0.0, seed, Features())
    assert sdpa.suits(call, 1.0)
    assert not sdpa.suits(call._replace(causal_offset=3), 1.0)
    assert not sdpa.suits(call, 1.5)


def test_auto_takes_triton_and_reads_no_value_of_a_cuda_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_host, "unavailable", lambda: None)
    assert resolve("auto", "cuda") == "triton"

    def on_gpu(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="cuda")

    with FakeTensorMode(), torch.no_grad():  # fake tensors have no values, and raise where one is read
        q, k = (on_gpu(1, heads, 70, 32, dtype=torch.float16) for heads in (4, 2))
        features = {"alpha": on_gpu(4), "sinks": on_gpu(4), "alibi_slopes": on_gpu(4), "window": (9, 9), "softcap": 3.0}
        out = attention(q, k, k, None, 0.1, True, enable_gqa=True, key_mask=on_gpu(1, 70, dtype=torch.bool), **features)  # type: ignore[arg-type]
        assert isinstance(out, Tensor)
        assert out.shape == q.shape
        assert isinstance(attention(q, q, q, alpha=1.0), Tensor)  # torch's own
        assert isinstance(attention(q, q, q, on_gpu(70, 70, dtype=torch.bool), normalizer="sigmoid"), Tensor)
