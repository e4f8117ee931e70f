"""`entformer translate` at a terminal: a prompt, an answer to every line, and an end at Ctrl-D."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
from pathlib import Path
from entformer.cli.translate import translate
translate(Path(sys.argv[1]), OPTIONS, max_ratio=0.0, max_extra=4, threads=1)
"""


def start(options: str, run_folder: Path, **streams: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM.replace("OPTIONS", options), str(run_folder)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "dumb"}, **streams)


def read_until(terminal: int, text: bytes, seconds: float = 60.0) -> bytes:
    """What the program shows until `text` comes."""
    seen, end = b"", time.monotonic() + seconds
    while text not in seen and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 4096)
    assert text in seen, seen
    return seen


def test_a_person_types_and_gets_answers(run_folder: Path) -> None:
    terminal, theirs = pty.openpty()
    process = start("beam=2, n_best=2", run_folder, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    try:
        assert b"en -> de" in read_until(terminal, b"en> ")
        for line in (b"two dogs\n", b"\n", "👍 a man\n".encode()):
            os.write(terminal, line)
            read_until(terminal, b"en> ")
        os.write(terminal, b"\x04")
        read_until(terminal, b"3 lines")
        assert process.wait(30) == 0
    finally:
        process.kill()
        os.close(terminal)


def test_a_program_that_waits_gets_its_answer_at_once(run_folder: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = start("interactive=True, beam=2", run_folder, **pipes)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        for line in (b"two dogs\n", b"\n", b"a man\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline().endswith(b"\n")  # would wait for ever if lines were held back
        process.stdin.close()
    assert process.returncode == 0


def test_a_reader_that_has_seen_enough_is_no_error(run_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.txt"
    source.write_text("two dogs\n" * 3000, encoding="utf-8")
    options = f"beam=1, window=50, input_file=Path({str(source)!r})"
    process = start(options, run_folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 0
    assert b"Error" not in said
