"""The long part of the attention benchmark: what races, what is asked of memory, and how it is told. Nothing is timed here."""

import json
from dataclasses import asdict

import pytest
import torch
from rich.console import Console

from entformer.bench import attention_racers as racers
from entformer.bench import long
from entformer.bench.attention_plan import LONG_LENGTHS, Setting, full_plan, quick_plan
from entformer.bench.memory import PROC, Peak, peak_memory
from entformer.cli.bench_attention import _print_long
from entformer.kernels.flash.api import attention
from entformer.nn.positions import nape_slopes


def setting(kind: str, keys: int) -> Setting:
    queries = 1 if kind == "decode" else keys
    return Setting(batch=1, heads=8, queries=queries, keys=keys, size=16, kind=kind, threads=1, rounds=1, slow_rounds=0)


def test_the_long_part_is_measured_when_asked_for() -> None:
    assert LONG_LENGTHS == (16_384, 65_536)
    assert full_plan().long_lengths is None
    assert full_plan(long=True).long_lengths == quick_plan(long=True).long_lengths == LONG_LENGTHS
    assert long.measure_long(None, threads=1) == []


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_nape_contestants_see_distances_from_the_last_key(kind: str) -> None:
    inputs = racers.make_inputs(setting(kind, 48))
    attend, parameters = racers.contestant("learned nape", 8)
    assert [tuple(parameter.shape) for parameter in parameters] == [(8,)]  # alphas learn, slopes do not
    with torch.no_grad():
        found = attend(inputs)
        wanted = attention(
            inputs.q,
            inputs.k,
            inputs.v,
            alpha=1.49,
            is_causal=True,
            causal_offset=48 - inputs.q.shape[2],
            alibi_slopes=nape_slopes(8),
            impl="reference",
        )
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_every_contestant_is_told_with_ratio_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def peak(name: str, length: int, *, threads: int, kind: str) -> Peak:
        asked.append((name, length, kind))
        return Peak(1.0, 200.0)

    monkeypatch.setattr(long, "peak_memory", peak)
    found = long.measure_long((24, 64), threads=1)
    names = [racers.SDPA, *racers.LONG_ONES]
    assert [(r.kind, r.keys, r.contestant) for r in found] == [
        (kind, keys, name) for kind, keys in (("prefill", 24), ("decode", 64)) for name in names
    ]
    assert [(name, keys, kind) for kind, keys, name in [(r.kind, r.keys, r.contestant) for r in found]] == asked
    for result in found:
        assert 0.0 < result.density <= 1.0
        assert result.ms > 0.0
        assert result.process_megabytes == 200.0
        if result.contestant == racers.SDPA:
            assert result.ratio == 1.0
        json.dumps(asdict(result))
    console = Console(width=80, record=True)
    _print_long(console, found[: len(names)], "causal prefill, (1,8,L,64)")
    text = console.export_text()
    assert "L = 24" in text
    assert all(name in text for name in names)


@pytest.mark.skipif(not (PROC / "clear_refs").exists(), reason="the system does not tell peaks")
def test_memory_of_a_decode_is_that_of_one_query() -> None:
    found = peak_memory("1.5 nape", 4096, threads=1, kind="decode")
    assert found is not None
    assert 0.0 <= found.beside < 64.0  # the keys of all heads are 8 MB; scores of 4096 queries would be 512
    assert found.whole > 50.0  # torch alone is more
