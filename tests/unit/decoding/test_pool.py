"""Translation in several processes: the output of one."""

import multiprocessing
from pathlib import Path

import pytest

from entformer.checkpoint import LoadedRun
from entformer.cli.translate import translate
from entformer.decoding.translate import Translator
from entformer.errors import ArgumentError, RunFailed

LINES = [f"a man {'looking at ' * (i * 7 % 11)}hat {i}" if i % 5 else "" for i in range(33)]


@pytest.mark.slow
def test_two_processes_write_what_one_does(run_folder: Path, tmp_path: Path) -> None:
    source, prefixes = tmp_path / "source.txt", tmp_path / "prefixes.txt"
    source.write_text("\n".join(LINES), encoding="utf-8")
    prefixes.write_text("red\n" * len(LINES), encoding="utf-8")
    written = []
    for processes in (1, 2):
        out, heads = (tmp_path / f"{name}.{processes}" for name in ("out", "heads"))
        files = {"input_file": source, "output": out, "prefix_file": prefixes, "attention": heads}
        small = {"window": 7, "batch_tokens": 60, "beam": 3, "max_ratio": 0.0, "max_extra": 6}  # several windows and batches
        translate(run_folder, n_best=2, threads=1, nproc=processes, **files, **small)  # type: ignore[arg-type]
        written.append((out.read_bytes(), heads.read_bytes()))
    assert written[0] == written[1]
    assert written[0][0].count(b"\n") == len(LINES)


@pytest.mark.slow
def test_a_process_that_is_killed_is_told(run_folder: Path) -> None:
    translations = Translator(run_folder, beam=1, max_length=3, window=1, processes=2).translate(LINES[1:])
    assert next(translations).line == 1
    for process in multiprocessing.active_children():
        process.kill()
    with pytest.raises(RunFailed, match="a process that translates has ended"):
        list(translations)
    assert multiprocessing.active_children() == []


def test_a_loaded_run_has_no_processes(copying: LoadedRun) -> None:
    with pytest.raises(ArgumentError, match="pass that, not a loaded run"):
        Translator(copying, processes=2)
