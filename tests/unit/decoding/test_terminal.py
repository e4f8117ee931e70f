"""`entformer translate` at a terminal: a prompt, an answer to every line, and an end at Ctrl-D."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = """
import sys
from pathlib import Path
from entformer.cli.translate import translate
translate(Path(sys.argv[1]), beam=2, n_best=2, max_ratio=0.0, max_extra=4, threads=1)
"""


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
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "dumb"}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(run_folder)], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
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
    program = PROGRAM.replace("beam=2, n_best=2", "interactive=True, beam=2")
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(run_folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
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
    program = PROGRAM.replace("beam=2, n_best=2", f"beam=1, window=50, input_file=Path({str(source)!r})")
    command = [sys.executable, "-c", program, str(run_folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 0
    assert b"Error" not in said
