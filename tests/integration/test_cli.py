"""The command line as a user runs it: help, exit codes, files written, standard output that a program can read."""

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from entformer.cli import self_test
from entformer.cli.doctor import OPERATORS
from entformer.cli.main import app
from entformer.errors import EntformerError
from entformer.kernels import native
from entformer.kernels.sources import sources_hash

Entformer = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[2]
HELP = """
import sys
from typer.testing import CliRunner
from entformer.cli.main import app
for command, options in {commands!r}.items():
    done = CliRunner().invoke(app, [*command.split(), "--help"], env={{"COLUMNS": "100"}})
    assert done.exit_code == 0, (command, done.exception)
    assert all(option in done.output for option in options.split()), (command, done.output)
print(sorted({{"torch", "numpy", "matplotlib"}} & set(sys.modules)))
"""
COMMANDS = {
    "": "demo prep train translate score average report explore longctx bench doctor config --version --debug",
    "demo": "--out --fresh --quick",
    "prep": "--corpus --train --vocab-size --clean",
    "train": "--set --resume-with-new-data",
    "translate": "--checkpoint --beam --length-penalty-alpha",
    "score": "--ref --run --checkpoint --length-penalty-alpha",
    "average": "--last --best --checkpoint",
    "report": "--gold --checkpoint",
    "explore": "--port --checkpoint",
    "longctx": "theory copy --list",
    "longctx copy": "--methods --eval-lengths",
    "bench": "rows attention training",
    "bench rows": "--quick",
    "bench attention": "--shapes",
    "doctor": "--json",
    "config": "show validate diff list",
    "config show": "--set",
}


def python(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_command_has_help_without_importing_torch() -> None:
    done = python("-c", HELP.format(commands=COMMANDS))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_flags_do_not_look_as_if_they_took_a_value() -> None:
    for command in (["report"], ["bench", "rows"]):
        done = python("-m", "entformer", *command, "--help", COLUMNS="100")
        assert done.returncode == 0, done.stderr
        assert "bool" not in done.stdout.lower()


@pytest.mark.parametrize(("arguments", "meant"), [("transalte x", "translate"), ("train --sett x=1 demo", "--set")])
def test_mistyped_commands_and_options_are_suggested(arguments: str, meant: str) -> None:
    done = CliRunner().invoke(app, arguments.split(), env={"COLUMNS": "100"})
    assert done.exit_code == 2
    assert meant in done.output


@pytest.mark.parametrize(
    "arguments",
    ["dance", "demo --loud", "translate x --alpha 0.6", "bench rows --threads 0", "bench training --preset huge"],
)
def test_invalid_usage_is_exit_2(arguments: str) -> None:
    assert CliRunner().invoke(app, arguments.split()).exit_code == 2


@pytest.mark.parametrize(
    "arguments",
    [
        "bench attention --threads 1,0",
        "bench attention --shapes 4x8x512",
        "translate nowhere",
        "score",
    ],
)
def test_invalid_arguments_are_user_errors(arguments: str) -> None:
    assert isinstance(CliRunner().invoke(app, arguments.split()).exception, EntformerError)


@pytest.mark.parametrize(
    "arguments", ["demo --out file/below", "bench rows --json file/below.json", "bench rows --png directory"]
)
def test_an_output_that_cannot_be_written_is_one_line(
    entformer: Entformer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    monkeypatch.chdir(tmp_path)
    done = entformer(*arguments.split())
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert done.stderr.startswith("entformer: ")
    assert arguments.split()[-1].split("/")[0] in done.stderr


def test_a_failure_is_exit_1_and_a_traceback_only_on_request(entformer: Entformer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert entformer("--version").stdout.startswith("entformer")
    monkeypatch.setattr("entformer.cli.doctor.examine", lambda: 1 / 0)
    done = entformer("doctor")
    assert done.returncode == 1
    assert done.stderr == "entformer: ZeroDivisionError: division by zero (run again with --debug for the traceback)\n"
    for arguments in (["--debug", "doctor"], ["doctor", "--debug"]):
        with pytest.raises(ZeroDivisionError):
            entformer(*arguments)


# ---- doctor --------------------------------------------------------------------------------------------------------------


def test_doctor_as_json(entformer: Entformer) -> None:
    done = entformer("doctor", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert found["self_test"]["passed"] is True
    assert set(found["self_test"]["largest_error"]) == {"weights", "gradient to scores", "gradient to alpha"}
    for devices in found["operators"].values():
        dispatch = devices["cpu"]
        assert dispatch["serves"] in ("cpu", "reference")
        assert {dispatch["serves"], *dispatch["why_not"]} == {"cpu", "reference", "triton"}
    assert found["sources"] == sources_hash()
    assert set(found["distributed"]) <= {"gloo", "nccl", "mpi", "ucc", "xccl"}
    assert found["origin"] in (("wheel", "cache") if found["library"] else ("reference",))
    assert found["origin_reason"]
    if found["library"]:
        assert found["instruction_sets"][found["instruction_set"]] is True
        assert all(set(row) == {"choice", "path", "condition"} for row in found["dispatch_table"])


def test_doctor_reports_every_operator_with_kernels() -> None:
    importlib.import_module("entformer.kernels.entmax.ops")
    importlib.import_module("entformer.kernels.attention.ops")
    chosen = ("entformer::entmax", "entformer::attention")  # those with more than one implementation
    registered = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(chosen)]
    assert sorted(registered) == sorted(OPERATORS)


def test_doctor_without_kernels_gives_the_reason() -> None:
    done = python("-m", "entformer.cli.main", "doctor", "--json", ENTFORMER_NATIVE="0")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    dispatch = found["operators"]["entformer::entmax"]["cpu"]
    assert dispatch["serves"] == found["origin"] == "reference"
    assert "ENTFORMER_NATIVE=0" in dispatch["why_not"]["cpu"]
    assert "ENTFORMER_NATIVE=0" in found["origin_reason"]


def test_the_environment_chooses_the_instruction_set() -> None:
    if native.load() is not None:
        pytest.skip("no C++ kernels here")
    print_isa = "from entformer.kernels import native; print(native.load() or native.isa())"
    assert python("-c", print_isa, ENTFORMER_ISA="portable").stdout == "portable\n"
    reason = python("-c", print_isa, ENTFORMER_ISA="avx9").stdout
    assert re.fullmatch(r"ENTFORMER_ISA='avx9' cannot run on this CPU; set it to one of .*portable, or unset it\.\n", reason)


def test_doctor_detects_a_wrong_kernel(entformer: Entformer, monkeypatch: pytest.MonkeyPatch) -> None:
    entmax = self_test.entmax

    def wrong(scores: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        return entmax(scores, *args, **options) * (1.001 if scores.dtype == torch.float32 else 1.0)

    monkeypatch.setattr(self_test, "entmax", wrong)
    done = entformer("doctor")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED" in done.stdout


# ---- bench ---------------------------------------------------------------------------------------------------------------


def test_bench_rows_writes_table_json_and_png(entformer: Entformer, tmp_path: Path) -> None:
    files = "--json", tmp_path / "rows.json", "--png", tmp_path / "rows.png"
    done = entformer("bench", "rows", "--quick", "--threads", "1", *files)
    assert done.returncode == 0, done.stderr
    assert "torch.softmax" in done.stdout
    report = json.loads((tmp_path / "rows.json").read_text())
    assert report["signature"]["threads"] == 1
    assert {"torch", "cpu", "implementation"} <= set(report["signature"])
    found = {(m["details"]["n"], m["direction"], m["implementation"]) for m in report["measurements"]}
    assert len(found) == len(report["measurements"]) >= 2 * 2 * 5
    assert all(0 < m["ratio_low"] <= m["ratio"] <= m["ratio_high"] for m in report["measurements"])
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")


def test_bench_attention_prints_json_and_writes_png(entformer: Entformer, tmp_path: Path) -> None:
    files = "--json", "-", "--png", tmp_path / "attention.png"
    done = entformer("bench", "attention", "--quick", "--threads", "1", "--shapes", "1x8x32x16", *files)
    assert "…" not in done.stderr, "a column of the tables is cut"
    assert done.returncode == 0, done.stderr
    assert "SDPA" in done.stderr  # standard output is JSON only
    assert "density" in done.stderr
    report = json.loads(done.stdout)
    assert {m["details"]["case"]["kind"] for m in report["measurements"]} == {"plain", "causal", "padded", "cross", "decode"}
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_peak_memory_does_not_hold_the_score_matrix() -> None:
    program = "import sys; sys.path.insert(0, 'benchmarks'); import attention_memory as m; print(m.peak_memory('1.5', 2048))"
    done = python("-c", program, cwd=ROOT, OMP_NUM_THREADS="1")
    # Output and three gradients take 4 x 4 MB; a matrix of scores would be 134 MB.
    assert 16 < float(done.stdout) < 134
