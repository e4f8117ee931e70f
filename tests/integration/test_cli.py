"""The command line as a user runs it: help, exit codes, files written, standard output that a program can read."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = {
    (): "demo",
    ("demo",): "--out",
    ("doctor",): "--json",
    ("bench",): "attention",
    ("bench", "rows"): "--quick",
    ("bench", "attention"): "--shapes",
}


def entformer(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "entformer.cli.main", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "word"), COMMANDS.items(), ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_help(command: tuple[str, ...], word: str) -> None:
    done = entformer(*command, "--help")
    assert done.returncode == 0
    assert done.stderr == ""
    assert word in done.stdout


def test_version() -> None:
    done = entformer("--version")
    assert done.returncode == 0
    assert done.stdout.startswith("entformer")


@pytest.mark.parametrize(
    "arguments",
    [
        ("dance",),
        ("demo", "--loud"),
        ("bench",),
        ("bench", "rows", "--threads", "0"),
        ("bench", "rows", "--threads", "two"),
        ("bench", "attention", "--threads", "1,0"),
        ("bench", "attention", "--shapes", "4x8x512"),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_2(arguments: tuple[str, ...]) -> None:
    done = entformer(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [("demo", "--out", "file/below"), ("bench", "rows", "--json", "file/below.json"), ("bench", "rows", "--png", "folder")],
    ids=" ".join,
)
def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    done = entformer(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("entformer: ")
    assert arguments[-1].split("/")[0] in done.stderr


BROKEN = """
import sys, entformer.cli.main as m, entformer.cli.doctor as d
d.examine = lambda: 1 / 0
sys.argv = ["entformer", *{}]
m.main()
"""


@pytest.mark.parametrize(
    ("arguments", "traceback"), [(["doctor"], False), (["--debug", "doctor"], True), (["doctor", "--debug"], True)]
)
def test_a_failure_is_exit_1_and_a_traceback_only_on_request(arguments: list[str], traceback: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BROKEN.format(arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    assert ("Traceback" in done.stderr) is traceback
    if not traceback:
        assert len(done.stderr.splitlines()) == 1


def test_doctor_reports_and_passes() -> None:
    done = entformer("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "self-test" in done.stdout
    assert "passed" in done.stdout


def test_doctor_json_is_for_programs() -> None:
    done = entformer("doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["self_test"]["passed"] is True
    assert set(found["self_test"]["largest_error"]) == {"weights", "gradient to scores", "gradient to alpha"}
    for devices in found["operators"].values():
        service = devices["cpu"]
        assert service["serves"] in ("cpu", "reference")
        assert {service["serves"], *service["why_not"]} == {"cpu", "reference", "triton"}
    if found["library"]:
        assert found["instruction_sets"][found["instruction_set"]] is True


OPERATORS = """
import torch, entformer.kernels.entmax.ops, entformer.kernels.attention.ops
chosen = ("entformer::entmax", "entformer::flash")  # those with more than one implementation to choose from
print(*[name for name in torch._C._dispatch_get_all_op_names() if name.startswith(chosen)])
"""


def test_doctor_knows_every_operator_with_kernels() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OPERATORS + "from entformer.cli.doctor import OPERATORS; print(*OPERATORS)"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=True,
    )
    registered, reported = done.stdout.splitlines()
    assert sorted(registered.split()) == sorted(reported.split())


def test_doctor_without_kernels_says_why() -> None:
    done = entformer("doctor", "--json", ENTFORMER_NATIVE="0")
    assert done.returncode == 0, done.stdout + done.stderr
    service = json.loads(done.stdout)["operators"]["entformer::entmax"]["cpu"]
    assert service["serves"] == "reference"
    assert "ENTFORMER_NATIVE=0" in service["why_not"]["cpu"]


# The kernels are asked for by name, so the lie must come from below: weights a little off.
LYING = """
import sys, entformer.cli.main as m, entformer.cli.self_test as s
honest = s.entmax
s.entmax = lambda *a, impl, **k: honest(*a, impl=impl, **k) * (1.0 if impl == "reference" else 1.001)
s._reference_against_softmax = lambda: [[1.0, 1.0, 1.0]]
sys.argv = ["entformer", "doctor"]
m.main()
"""


def test_doctor_finds_a_wrong_kernel() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LYING],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED" in done.stdout


@pytest.mark.slow
def test_demo_without_kernels_warns_in_one_sentence(tmp_path: Path) -> None:
    done = entformer("demo", "--quick", "--out", str(tmp_path), ENTFORMER_NATIVE="0")
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("warning: entformer uses its slow reference implementation")


def test_bench_rows_writes_table_json_and_png(tmp_path: Path) -> None:
    done = entformer("bench", "rows", "--quick", "--threads", "1", "--json", "rows.json", "--png", "rows.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torch.softmax" in done.stdout
    report = json.loads((tmp_path / "rows.json").read_text())
    assert report["signature"]["threads"] == 1
    assert {"torch", "cpu", "implementation"} <= set(report["signature"])
    found = {(m["details"]["n"], m["direction"], m["implementation"]) for m in report["measurements"]}
    assert len(found) == len(report["measurements"]) >= 2 * 2 * 5
    assert all(0 < m["ratio_low"] <= m["ratio"] <= m["ratio_high"] for m in report["measurements"])
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")


def test_bench_attention_writes_table_json_and_png(tmp_path: Path) -> None:
    files = ("--json", "attention.json", "--png", "attention.png")
    done = entformer("bench", "attention", "--quick", "--threads", "1", "--shapes", "2x8x64x64", *files, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "density" in done.stdout
    report = json.loads((tmp_path / "attention.json").read_text())
    assert {m["details"]["case"]["kind"] for m in report["measurements"]} == {"plain", "causal", "padded", "cross", "decode"}
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_bench_json_to_standard_output_is_pure() -> None:
    done = entformer("bench", "attention", "--quick", "--threads", "1", "--shapes", "1x8x32x16", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["benchmark"] == "attention"
    assert "SDPA" in done.stderr  # the tables are on stderr then


def test_peak_memory_does_not_hold_the_score_matrix() -> None:
    program = (
        "import sys; sys.path.insert(0, 'benchmarks'); from attention_memory import peak_memory\n"
        "print([peak_memory('1.5', n) for n in (512, 2048)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    short, long = json.loads(done.stdout)
    # Output and three gradients are held at the end, 4 x 4 MB at length 2048. A matrix of scores would be 134 MB.
    assert 16 < long < 134
    assert 2 * short < long
