"""Builds that are interrupted or forked into, the compiler's command, and a cache that others could write to."""

import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from entformer import cache as cache_module
from entformer.kernels import build, native

from .conftest import ARGUMENTS, LONG, script, start, wait_for

FORKING = """
import os, pathlib, signal, sys, threading, time
from entformer.kernels import native
log, wait = map(pathlib.Path, sys.argv[1:])
thread = threading.Thread(target=native.load)
thread.start()
while not log.exists() or "linked" not in log.read_text():
    time.sleep(0.02)
child = os.fork()
if child == 0:
    signal.alarm(50)
    os._exit(0 if native.isa() == "portable" else 1)
wait.unlink()
thread.join()
print(os.waitpid(child, 0)[1], native.isa())
"""


def test_a_child_forked_during_a_build_works(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "wait").touch()
    out, err = start("-c", FORKING, str(tmp_path / "log"), str(tmp_path / "wait")).communicate(timeout=LONG)
    assert out.split() == ["0", "portable"], err
    assert len(list(cache.glob("*.so"))) == 1


def test_a_fork_waits_while_a_compiler_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the child has a copy of the pipe that Popen reads to its end, and the build goes on when the child has ended."""
    inside, started = threading.Event(), []
    popen = build.subprocess.Popen

    def slow(*arguments: object, **options: object) -> object:
        inside.set()
        time.sleep(0.1)
        started.append(popen(*arguments, **options))  # type: ignore[call-overload]
        return started[0]

    monkeypatch.setattr(build.subprocess, "Popen", slow)
    compiler = script(tmp_path / "c++", f'{ARGUMENTS}\nexec touch "$target"\n')
    with ThreadPoolExecutor(1) as pool:
        built = pool.submit(build.compile_library, [str(compiler)], [(tmp_path / "a.cpp", [])], [], tmp_path)
        assert inside.wait(LONG)
        child = os.fork()
        if child == 0:
            os._exit(0 if started else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert built.result(LONG).exists()


def test_a_child_does_not_keep_the_lock_of_a_build(tmp_path: Path) -> None:
    gate, at_gate = os.pipe()
    answer, from_child = os.pipe()
    with build.build_directory(tmp_path):
        (held,) = build._held
        child = os.fork()
        if child == 0:  # it lives on after the build, as a worker does
            try:
                fcntl.fcntl(held, fcntl.F_GETFD)
                os.write(from_child, b"open")
            except OSError as problem:
                os.write(from_child, b"closed" if problem.errno == errno.EBADF else b"?")
            os.read(gate, 1)
            os._exit(0)
        assert os.read(answer, 10) == b"closed"
    try:
        with open(tmp_path / "build.lock") as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises if the child held it
    finally:
        os.write(at_gate, b"x")
        os.waitpid(child, 0)


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_ends_its_compilers_and_leaves_nothing(
    cache: Path, tmp_path: Path, sent: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = f'echo $$ >> "{tmp_path}/pids"\nsleep 1000 &\necho $! >> "{tmp_path}/pids"\nwait\n'
    monkeypatch.setenv("CXX", str(script(tmp_path / "endless-c++", body)))
    process = start()
    wait_for(tmp_path / "pids", process)
    process.send_signal(sent)
    process.communicate(timeout=LONG)
    assert process.returncode == -sent
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        assert gone(pid)
    assert [path.name for path in cache.iterdir()] == ["build.lock"]


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.02)
                continue
        return True
    return False


def test_no_more_compilers_at_once_than_cores_and_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "running").mkdir()
    counting = script(
        tmp_path / "counting-c++",
        f"""{ARGUMENTS}
mkdir "{tmp_path}/running/$$"
ls "{tmp_path}/running" | wc -l >> "{tmp_path}/counts"
sleep 0.05
rmdir "{tmp_path}/running/$$"
echo x > "$target"
""",
    )
    monkeypatch.setattr(build, "_cores", lambda: 2)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    sources = [(tmp_path / f"{i}.cpp", []) for i in range(7)]
    with caplog.at_level(logging.WARNING, logger="entformer"):
        build.compile_library([str(counting)], sources, [], scratch)
    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert len(counts) == 8
    assert max(counts) <= 2
    first, *progress = [record.getMessage() for record in caplog.records]
    assert first == "entformer: compiling the CPU kernels with counting-c++, a minute or two on a free core, once per machine"
    assert [re.sub(r" in \d+ s$", "", line) for line in progress] == [
        f"entformer: compiled {i} of 7 files" for i in range(1, 8)
    ]


def test_a_process_that_waits_for_a_build_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def build_nothing() -> bool:
        with build.build_directory(tmp_path) as scratch:
            return scratch.exists()

    with open(tmp_path / "build.lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING, logger="entformer"):
            waiting = pool.submit(build_nothing)
            end = time.monotonic() + LONG
            while not caplog.records and time.monotonic() < end:
                time.sleep(0.02)
            fcntl.flock(other, fcntl.LOCK_UN)
            assert waiting.result(LONG)
    assert [record.getMessage() for record in caplog.records] == [
        "entformer: another process is compiling the CPU kernels; waiting for it"
    ]


def test_the_first_failure_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 'case "$*" in --version) exit 0;; *bad.cpp*) echo "bad.cpp:1: error: boom"; exit 1;; esac\nexec sleep 1000\n'
    monkeypatch.setattr(build, "_cores", lambda: 4)
    with pytest.raises(build.BuildError, match=r"could not compile bad\.cpp: bad\.cpp:1: error: boom\."):
        build.compile_library(
            [str(script(tmp_path / "c++", body))], [(tmp_path / name, []) for name in ("a.cpp", "bad.cpp")], [], tmp_path
        )


def test_the_command_of_the_compiler(tmp_path: Path, cache: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "my tools"
    directory.mkdir()
    spaced = script(directory / "g++", "exit 0\n")
    sh = shutil.which("sh")
    for named, expected in (
        (str(spaced), [str(spaced)]),
        (f'"{spaced}" -x', [str(spaced), "-x"]),
        (" sh  -e ", [sh, "-e"]),
        ("there-is-no-such-compiler g++", None),
    ):
        monkeypatch.setenv("CXX", named)
        assert build.compiler() == expected
    monkeypatch.setenv("CXX", "g++ 'half")
    with pytest.raises(build.BuildError, match="cannot be read as a command"):
        build.compiler()
    monkeypatch.setenv("CXX", f"env A=1 nice -n 1 {compiler}")
    assert native.load() is None


# ---- who else may write -------------------------------------------------------------------------------------------------


@pytest.fixture
def private(cache: Path) -> Path:
    """A library in a cache that only this user can write."""
    assert native.load() is None
    (library,) = cache.glob("*.so")
    assert (native._own_directory(), native._cached(cache)) == (cache, library)
    return library


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o666])
def test_a_library_that_others_can_write_is_not_loaded(private: Path, mode: int) -> None:
    private.chmod(mode)
    assert native._cached(private.parent) is None


def test_a_link_is_not_loaded(private: Path, tmp_path: Path) -> None:
    private.rename(tmp_path / "elsewhere.so")
    private.symlink_to(tmp_path / "elsewhere.so")
    assert native._cached(private.parent) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_and_directories_of_another_user_are_not_used(private: Path) -> None:
    os.chown(private, 12345, -1)
    assert native._cached(private.parent) is None
    os.chown(private.parent, 12345, -1)
    with pytest.raises(native.BuildError, match=r"cache belongs to another user \(number 12345\).*point ENTFORMER_CACHE"):
        native._own_directory()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_directory_that_others_can_write_is_refused_with_the_remedy(private: Path, mode: int) -> None:
    private.parent.chmod(mode)
    with pytest.raises(native.BuildError, match=r"can be written by others \(chmod go-w would end that\).*ENTFORMER_CACHE"):
        native._own_directory()


def test_directories_above_count_too_unless_they_are_sticky(private: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(native.BuildError, match=f"{tmp_path} can be written by others"):
        native._own_directory()
    tmp_path.chmod(0o1777)
    assert native._own_directory() == private.parent


# ---- where the cache is -------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a directory of temporary files, and no variable that names the cache."""
    for name in ("ENTFORMER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.setattr(cache_module.tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_variables_name_the_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_module.cache_root() == home / ".cache" / "entformer"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "xdg"))
    assert cache_module.cache_root() == home / "xdg" / "entformer"
    monkeypatch.setenv("ENTFORMER_CACHE", str(home / "mine"))
    assert cache_module.cache_root() == home / "mine"


def test_the_default_directory_is_closed_to_others(home: Path) -> None:
    directory = home / ".cache" / "entformer"
    directory.mkdir(parents=True)
    directory.chmod(0o777)
    assert native._own_directory() == directory
    assert directory.stat().st_mode & 0o777 == 0o755


def test_where_the_home_is_not_safe_a_directory_of_the_user_is_taken(home: Path) -> None:
    home.chmod(0o777)
    assert native._own_directory() == home.parent / "temporary" / f"entformer-{os.getuid()}"


def test_without_home_and_user_entry_there_is_still_a_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", nobody)
    assert cache_module.cache_root() == home.parent / "temporary" / f"entformer-{os.getuid()}"
    from entformer.tasks.corpora import cache_folder

    assert cache_folder() == cache_module.cache_root() / "corpora"
