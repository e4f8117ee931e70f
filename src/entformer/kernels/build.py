"""Compiles C++ sources to a shared library.

At most as many compilers run at once as this process may use cores. When a build is interrupted (Ctrl-C, SIGTERM, any error)
they are ended and the build directory is removed. A lock in the cache directory keeps two processes from building at once; it
is given back explicitly and closed in forked children, so that no child can hold it.
"""

import contextlib
import errno
import logging
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

_POLL = 0.02
_log = logging.getLogger("entformer")  # without a configuration of its own, it writes to the standard error
_starting = threading.RLock()  # held while a compiler is started; a fork waits for it
_held: set[int] = set()  # descriptors of build locks of this process


class BuildError(Exception):
    """Why there is no library: one sentence for the user."""


def compiler() -> list[str] | None:
    """The C++ compiler as a command: `$CXX` with its arguments ("ccache g++"), else the first of c++, g++, clang++.

    Raises:
        BuildError: `$CXX` cannot be split into words.
    """
    named = os.environ.get("CXX", "").strip()
    if not named:
        return next(([found] for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)
    if found := shutil.which(named):  # also a path with blanks
        return [found]
    try:
        program, *arguments = shlex.split(named)
    except ValueError as problem:
        raise BuildError(f"CXX={named!r} cannot be read as a command ({problem}).") from problem
    found = shutil.which(program)
    return [found, *arguments] if found else None


def compile_library(
    cxx: Sequence[str], sources: Sequence[tuple[Path, Sequence[str]]], link_flags: Sequence[str], scratch: Path
) -> Path:
    """Compile every source with its flags and link them.

    Args:
        cxx: the compiler's command.
        sources: files and their flags.
        link_flags: for the last step.
        scratch: an empty directory for everything that is written.

    Returns:
        The library, in `scratch`.

    Raises:
        BuildError: the compiler failed, or ended without output.
        OSError: the disk is full.
    """
    objects = [scratch / f"{number}.o" for number in range(len(sources))]
    commands = [
        [*cxx, *flags, "-c", str(source), "-o", str(target)] for (source, flags), target in zip(sources, objects, strict=True)
    ]
    library = scratch / "kernels.so"
    link = [*cxx, "-shared", *map(str, objects), "-o", str(library), *link_flags]
    _log.warning(
        "entformer: compiling the CPU kernels with %s, a minute or two on a free core, once per machine", Path(cxx[0]).name
    )
    began = time.monotonic()

    def report(done: int) -> None:
        _log.warning("entformer: compiled %d of %d files in %.0f s", done, len(sources), time.monotonic() - began)

    with _collected_signals() as received:
        names = [source.name for source, _ in sources]
        _run(cxx, list(zip(names, commands, strict=True)), objects, scratch, received, report)
        _run(cxx, [("the library", link)], [library], scratch, received)
    return library


def _run(
    cxx: Sequence[str],
    jobs: list[tuple[str, list[str]]],
    targets: list[Path],
    scratch: Path,
    received: Sequence[int],
    report: Callable[[int], None] = lambda done: None,
) -> None:
    """Run commands, as many at once as there are cores; all are over when this returns or raises.

    `report` is called with the number of those that have ended, each time one has.
    """
    environment = os.environ | {"TMPDIR": str(scratch)}
    waiting = list(enumerate(jobs))
    running: dict[int, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < _cores():
                number, (_, command) = waiting.pop(0)
                # A child forked now would hold the pipe that Popen reads until its end, and the build would wait for the child.
                with (scratch / f"{number}.log").open("wb") as log, _starting:
                    running[number] = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=environment,
                        start_new_session=True,
                    )
            time.sleep(_POLL)
            if received:
                raise _Interrupted(received[0])
            for number, process in list(running.items()):
                if process.poll() is not None:
                    del running[number]
                    said = (scratch / f"{number}.log").read_text(encoding="utf-8", errors="replace")
                    _check(cxx, jobs[number][0], process.returncode, said, targets[number])
                    report(len(jobs) - len(waiting) - len(running))
    finally:
        for process in running.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in running.values():
            process.wait()


def _check(cxx: Sequence[str], source: str, code: int, said: str, target: Path) -> None:
    """Raise what a compiler's end means, if it is not a success."""
    name = " ".join([Path(cxx[0]).name, *cxx[1:]])
    if code == 0 and target.is_file():
        return
    if code == 0:
        raise BuildError(f"{name} compiled {source} without an error and produced no output; set CXX to a C++ compiler.")
    if os.strerror(errno.ENOSPC) in said:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    lines = [line for line in said.splitlines() if "error" in line.lower()] or said.splitlines() or [f"exit code {code}"]
    raise BuildError(f"{name} could not compile {source}: {lines[0].strip()}.")


def compiler_version(cxx: Sequence[str]) -> str:
    """The first line that a compiler prints about itself; empty if it prints none."""
    try:
        done = subprocess.run([*cxx, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return next(iter(done.stdout.splitlines()), "")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# ---- interruption, locks, forks -----------------------------------------------------------------------------------------


class _Interrupted(BaseException):
    """A signal asked the build to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextlib.contextmanager
def _collected_signals() -> Iterator[list[int]]:
    """Signals that would end the process, put on a list instead; only those that nobody else handles.

    An exception out of a handler could come while a compiler is being started, and that one would run on.
    """
    received: list[int] = []
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    if threading.current_thread() is not threading.main_thread():  # others get no signals
        usual = {}
    taken = {number: handler for number, handler in usual.items() if signal.getsignal(number) is handler}

    def collect(number: int, frame: FrameType | None) -> None:
        received.append(number)

    for number in taken:
        signal.signal(number, collect)
    try:
        yield received
    finally:
        for number, handler in taken.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def build_directory(cache: Path) -> Iterator[Path]:
    """A directory to build in, while no other process builds in this cache. Removed at the end; older ones are too."""
    try:
        with _only_one_builder(cache):
            for left in cache.glob("build-*"):  # of builds that were killed: nobody else builds now
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=cache, prefix="build-") as scratch:
                yield Path(scratch)
    except _Interrupted as problem:
        if problem.number == signal.SIGTERM:
            os.kill(os.getpid(), signal.SIGTERM)  # now it ends the process, as it would have
        raise KeyboardInterrupt from None


@contextlib.contextmanager
def _only_one_builder(cache: Path) -> Iterator[None]:
    import fcntl  # posix only

    handle = os.open(cache / "build.lock", os.O_RDWR | os.O_CREAT, 0o600)
    _held.add(handle)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _log.warning("entformer: another process is compiling the CPU kernels; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        # Explicitly: a forked child has a copy of the descriptor, and closing ours alone would not end the lock.
        fcntl.flock(handle, fcntl.LOCK_UN)
        _held.discard(handle)
        os.close(handle)


def _reset_in_child() -> None:
    """A child does not go on with its parent's builds. Its copies of their locks would outlive the parent."""
    global _starting
    _starting = threading.RLock()
    for handle in _held:
        with contextlib.suppress(OSError):
            os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _starting.acquire(), after_in_parent=lambda: _starting.release(), after_in_child=_reset_in_child
    )
