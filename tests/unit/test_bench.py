"""The benchmark harness: interleaving, ratios within a round, memory that stays with the process."""

import platform
import subprocess
import sys

import pytest

from entformer.bench import harness, training
from entformer.bench.attention import IMPLEMENTATIONS, Case, measure
from entformer.errors import ArgumentError
from entformer.kernels import native

PAGE_FAULTS = """
import resource, statistics, torch
from entformer.training.memory import keep_freed_memory
{setup}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(4 * 2**20) + 1.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(statistics.median(faults() for _ in range(41)))
"""


def test_functions_run_once_per_round_in_rotating_order() -> None:
    calls: list[str] = []
    functions = {name: lambda name=name: calls.append(name) for name in "abc"}
    seconds = harness.time_interleaved(functions, rounds=3, warmup=1, max_rounds={"c": 1})
    assert calls == ["a", "b", *"abc", *"ba", *"ab"]
    assert {name: len(times) for name, times in seconds.items()} == {"a": 3, "b": 3, "c": 1}


def test_ratios_are_taken_within_a_round() -> None:
    seconds = {"base": [1.0, 10.0, 100.0], "half": [0.5, 5.0, 50.0], "slow": [2.0]}
    found = {m.implementation: m for m in harness.measurements(seconds, "base", "case", "forward", {"half": {"n": 3}})}
    assert set(found) == {"half", "slow"}
    assert (found["half"].ratio, found["half"].ratio_low, found["half"].ratio_high) == (0.5, 0.5, 0.5)
    assert (found["slow"].ratio, found["slow"].rounds, found["slow"].baseline_ms) == (2.0, 1, 1000.0)
    assert found["half"].details == {"n": 3}


@pytest.mark.parametrize("kind", ["plain", "causal", "padded", "prefill", "decode"])
def test_every_kind_of_attention_is_measured_with_its_density(kind: str) -> None:
    queries = 1 if kind == "decode" else 32
    case = Case(batch=2, heads=4, queries=queries, keys=32, size=16, kind=kind, threads=1)
    found = list(measure(case, ("1.5", "2", "1.5 nape", *IMPLEMENTATIONS[4:]), rounds=1))
    assert {m.direction for m in found} == {"forward"} | (
        {"forward+backward"} if kind in ("plain", "causal", "padded") else set()
    )
    density = {m.implementation: m.details["density"] for m in found}
    assert 0 < density["2"] < density["1.5"] < density["softmax"] == pytest.approx(1.0)


def test_an_instruction_set_is_selected_for_a_benchmark_alone() -> None:
    before = native.isa()
    with harness.instruction_set("portable"):
        assert harness.get_signature().implementation == "cpu (portable)"
    assert native.isa() == before
    with pytest.raises(ArgumentError, match="isa='sse9' cannot run on this CPU"), harness.instruction_set("sse9"):
        pass


def test_training_steps_are_measured_for_every_normalizer() -> None:
    sizes = {"width": 16, "hidden": 16, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 50}
    report = training.benchmark_training(quick=True, sizes=sizes, extra={"again": training.build_entformer})
    assert {m.implementation for m in report.measurements} == {*training.ATTENTION, "again"} - {training.BASELINE}
    assert all(m.details["tokens_per_s"] > 0 for m in report.measurements)


def test_a_number_of_threads_below_one_is_refused() -> None:
    with pytest.raises(ArgumentError, match="at least 1"), harness.threads(0):
        pass


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs the GNU C library")
def test_freed_memory_can_stay_with_the_process() -> None:
    """malloc may still cut up a freed block now and then, so the median of many rounds is compared."""

    def median_faults(setup: str) -> float:
        script = PAGE_FAULTS.format(setup=setup)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
        return float(done.stdout)

    kept, returned = median_faults("assert keep_freed_memory()"), median_faults("")
    assert kept < 100 or kept < returned / 2  # with pages of 4 KB, 0 and 8192
