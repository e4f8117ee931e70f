"""Attention over keys of several processes equals attention over all keys in one. Two threads stand for the processes."""

import math
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import entformer as ef
from entformer import distributed
from entformer.distributed import sharded_attention
from entformer.errors import ArgumentError


class Meeting:
    """An all-reduce among threads, each of which is a process."""

    def __init__(self, size: int) -> None:
        self.barrier, self.parts, self.calls = threading.Barrier(size, timeout=60), {}, 0
        self.numbers: list[int] = []

    def all_reduce(self, tensor: Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None) -> None:
        self.parts[threading.get_ident()] = tensor.clone()
        self.barrier.wait()
        stacked = torch.stack([self.parts[key] for key in sorted(self.parts)])
        self.barrier.wait()
        tensor.copy_(stacked.amax(0) if op == dist.ReduceOp.MAX else stacked.sum(0))
        self.numbers.append(tensor.numel())


def over_threads(shards: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> tuple[list[Tensor], int]:
    """Returns the output of every process, and the numbers that each sent."""
    meeting = Meeting(len(shards))
    monkeypatch.setattr(distributed.dist, "all_reduce", meeting.all_reduce)
    monkeypatch.setattr(distributed.dist, "group", type("Groups", (), {"WORLD": meeting}))
    outputs: list[Any] = [None] * len(shards)

    def run(rank: int) -> None:
        outputs[rank] = sharded_attention(**shards[rank])

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(shards))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outputs, sum(meeting.numbers) // len(shards)


@pytest.mark.parametrize("splits", [(40, 57), (97, 0), (1, 96), (30, 30, 37)])
@pytest.mark.parametrize("alpha", [1.0, 1.01, 1.5, 2.0, "heads"])
def test_keys_of_several_processes_count_as_one(splits: tuple[int, ...], alpha: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    batch, heads, size, keys = 2, 4, 8, sum(splits)
    if alpha == "heads":
        alpha = torch.tensor([1.0, 1.2, 1.7, 2.0])
    q, k, v = (torch.randn(batch, heads, length, size, dtype=torch.float64) * 2 for length in (3, keys, keys))
    mask = torch.rand(batch, 1, 3, keys) > 0.3
    mask[0, 0, 1] = False  # a query that may attend to nothing
    starts = [sum(splits[:rank]) for rank in range(len(splits))]
    parts = [slice(start, start + length) for start, length in zip(starts, splits, strict=True)]
    shards = [{"q": q, "k_shard": k[:, :, p], "v_shard": v[:, :, p], "mask": mask[..., p], "alpha": alpha} for p in parts]
    outputs, sent = over_threads(shards, monkeypatch)
    scores = (q @ k.mT / math.sqrt(size)).masked_fill(~mask, -math.inf)
    per_head = torch.as_tensor(alpha, dtype=torch.float64).expand(heads)
    weights = ef.entmax(scores, per_head, alpha_dim=1, impl="reference").masked_fill(~mask, 0.0)
    for output in outputs:
        # The weights sum to 1 up to TOLERANCE before they are normalized; alpha = 1.01 raises its rounding to a power of 100.
        torch.testing.assert_close(output, weights @ v, rtol=1e-9, atol=1e-9)
        assert torch.equal(output, outputs[0])
    rows = batch * heads * 3
    assert sent <= rows * (1 + 2 * 16 + size + 1)  # of no key or value: two numbers per row and iteration


def test_float32_and_wrong_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    q, k, v = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 50, 8), torch.randn(1, 2, 50, 6)
    shards = [{"q": q, "k_shard": k[:, :, p], "v_shard": v[:, :, p], "scale": 0.5} for p in (slice(20), slice(20, 50))]
    outputs, _ = over_threads(shards, monkeypatch)
    expected = ef.entmax(0.5 * q @ k.mT, 1.5) @ v
    torch.testing.assert_close(outputs[0], expected, rtol=1e-5, atol=1e-6)
    assert outputs[0].dtype == torch.float32
    for change, sentence in [
        ({"alpha": 2.5}, "alpha must be a number or 2 numbers"),
        ({"alpha": torch.ones(3)}, "alpha must be a number or 2 numbers"),
        ({"v_shard": v[:, :, :7]}, "v_shard the batch, heads and L of k_shard"),
        ({"q": q[0]}, "four dimensions"),
    ]:
        with pytest.raises(ArgumentError, match=sentence):
            sharded_attention(**{"q": q, "k_shard": k, "v_shard": v, **change})
