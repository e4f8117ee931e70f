"""Builds that are interrupted, forked into, or share their folder with others. A script stands in for the compiler."""

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import entformer
from entformer import cache as cache_module
from entformer.kernels import build, native

PACKAGES = Path(entformer.__file__).parent.parent
LONG = 60.0  # seconds until a test that hangs is given up; none takes as long

BEGIN = """
for argument; do
  [ "$previous" = "-o" ] && target="$argument"
  [ "$argument" = "-shared" ] && linking=1
  previous="$argument"
done
"""


def script(path: Path, body: str) -> Path:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return path


@pytest.fixture
def library() -> Path:
    """The real library; the scripts "link" by copying it."""
    if native.load() is not None:
        pytest.skip("there are no kernels here")
    found = native.library_path()
    assert found is not None
    return found


@pytest.fixture
def pretender(tmp_path: Path, library: Path) -> Path:
    """Compiles nothing, links by copying, and waits for the file "go" before that."""
    body = f"""{BEGIN}
[ -z "$linking" ] && {{ echo x > "$target"; exit 0; }}
touch "{tmp_path}/linking"
while [ ! -e "{tmp_path}/go" ]; do sleep 0.02; done
exec cp "{library}" "$target"
"""
    return script(tmp_path / "pretend-c++", body)


def start(cache: Path, compiler: str | Path, code: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("ENTFORMER_NATIVE", "XDG_CACHE_HOME")}
    environment |= {"ENTFORMER_CACHE": str(cache), "CXX": str(compiler), "PYTHONPATH": str(PACKAGES), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + LONG
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


USE = """
import torch, entformer
if torch.allclose(entformer.entmax(torch.ones(2), 1.5, impl="cpu"), torch.full((2,), 0.5)):
    print("right")
"""

FORKING = """
import os, signal, sys, threading, time, torch, entformer
def use():
    return torch.allclose(entformer.entmax(torch.ones(2), 1.5, impl="cpu"), torch.full((2,), 0.5))
thread = threading.Thread(target=use)
thread.start()
while not os.path.exists(sys.argv[1] + "/linking"):
    time.sleep(0.02)
child = os.fork()
if child == 0:
    signal.alarm(50)
    os._exit(0 if use() else 1)
open(sys.argv[1] + "/go", "w").close()
thread.join()
print(os.waitpid(child, 0)[1], use())
"""


def test_a_child_forked_during_a_build_works(tmp_path: Path, pretender: Path) -> None:
    code = f"import sys; sys.argv = ['', {str(tmp_path)!r}]\n{FORKING}"
    out, err = start(tmp_path / "cache", pretender, code).communicate(timeout=LONG)
    assert out.split() == ["0", "True"], err
    assert len(list((tmp_path / "cache").glob("*.so"))) == 1


def test_two_processes_that_need_different_libraries_build_one_after_the_other(tmp_path: Path, pretender: Path) -> None:
    (tmp_path / "go").touch()
    other = script(tmp_path / "other-c++", f'exec "{pretender}" "$@"\n')  # the name is part of the key
    processes = [start(tmp_path / "cache", cxx, USE) for cxx in (pretender, other)]
    assert [process.communicate(timeout=LONG)[0] for process in processes] == ["right\n"] * 2
    assert len(list((tmp_path / "cache").glob("*.so"))) == 2
    assert not list((tmp_path / "cache").glob("build-*"))


def test_a_child_does_not_keep_the_lock_of_a_build(tmp_path: Path) -> None:
    gate, at_gate = os.pipe()
    answer, from_child = os.pipe()
    with build.build_folder(tmp_path):
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
def test_an_interrupted_build_ends_its_compilers_and_leaves_nothing(tmp_path: Path, sent: signal.Signals) -> None:
    endless = script(
        tmp_path / "endless-c++", f'echo $$ >> "{tmp_path}/pids"\nsleep 1000 &\necho $! >> "{tmp_path}/pids"\nwait\n'
    )
    process = start(tmp_path / "cache", endless, "import torch, entformer; entformer.entmax(torch.ones(2), 1.5)")
    wait_for(tmp_path / "pids", process)
    process.send_signal(sent)
    process.communicate(timeout=LONG)
    assert process.returncode == -sent
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        assert gone(pid)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["build.lock"]


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


def test_no_more_compilers_at_once_than_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "running").mkdir()
    counting = script(
        tmp_path / "counting-c++",
        f"""{BEGIN}
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
    build.compile_library([str(counting)], [(tmp_path / f"{i}.cpp", []) for i in range(7)], [], scratch)
    counts = [int(line) for line in (tmp_path / "counts").read_text().split()]
    assert len(counts) == 8
    assert max(counts) <= 2


def test_the_first_failure_ends_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 'case "$*" in --version) exit 0;; *bad.cpp*) echo "bad.cpp:1: error: boom"; exit 1;; esac\nexec sleep 1000\n'
    monkeypatch.setattr(build, "_cores", lambda: 4)
    with pytest.raises(build.BuildError, match=r"could not compile bad\.cpp: bad\.cpp:1: error: boom\."):
        build.compile_library(
            [str(script(tmp_path / "c++", body))], [(tmp_path / name, []) for name in ("a.cpp", "bad.cpp")], [], tmp_path
        )


def test_a_long_build_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    slow = script(tmp_path / "slow-c++", f'{BEGIN}\nsleep 0.2\necho x > "$target"\n')
    monkeypatch.setattr(build, "PATIENCE", 0.0)
    monkeypatch.setattr(build, "_cores", lambda: 1)
    with caplog.at_level(logging.WARNING, logger="entformer"):
        build._run([str(slow)], [("a.cpp", [str(slow), "-o", str(tmp_path / "a.o")])], [tmp_path / "a.o"], tmp_path)
    assert [record.getMessage() for record in caplog.records] == [
        "entformer: compiling CPU kernels, about a minute, once per machine"
    ]


# ---- the command of the compiler ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["nice ", "env A=1 nice -n 1 "])
def test_a_compiler_with_arguments_builds(tmp_path: Path, pretender: Path, before: str) -> None:
    (tmp_path / "go").touch()
    out, err = start(tmp_path / "cache", f"{before}{pretender}", USE).communicate(timeout=LONG)
    assert out == "right\n", err


def test_how_the_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my tools"
    folder.mkdir()
    spaced = script(folder / "g++", "exit 0\n")
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


# ---- who else may write -------------------------------------------------------------------------------------------------


@pytest.fixture
def private(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with the library of this process."""
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    shutil.copy(library, folder)
    (folder / library.name).chmod(0o755)
    monkeypatch.setenv("ENTFORMER_CACHE", str(folder))
    return folder


def test_a_private_library_is_found(private: Path, library: Path) -> None:
    assert native._own_folder() == private
    assert native._cached(private) == private / library.name


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o666])
def test_a_library_that_others_can_write_is_not_loaded(private: Path, library: Path, mode: int) -> None:
    (private / library.name).chmod(mode)
    assert native._cached(private) is None


def test_a_link_is_not_loaded(private: Path, library: Path, tmp_path: Path) -> None:
    (private / library.name).rename(tmp_path / "elsewhere.so")
    (private / library.name).symlink_to(tmp_path / "elsewhere.so")
    assert native._cached(private) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_and_folders_of_another_user_are_not_used(private: Path, library: Path) -> None:
    os.chown(private / library.name, 12345, -1)
    assert native._cached(private) is None
    os.chown(private, 12345, -1)
    with pytest.raises(native.BuildError, match=r"cache belongs to another user \(number 12345\).*point ENTFORMER_CACHE"):
        native._own_folder()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_a_folder_that_others_can_write_is_refused_with_the_remedy(private: Path, mode: int) -> None:
    private.chmod(mode)
    with pytest.raises(native.BuildError, match=r"can be written by others \(chmod go-w would end that\).*ENTFORMER_CACHE"):
        native._own_folder()


def test_folders_above_count_too_unless_they_are_sticky(private: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(native.BuildError, match=f"{tmp_path} can be written by others"):
        native._own_folder()
    tmp_path.chmod(0o1777)
    assert native._own_folder() == private


def test_the_default_folder_is_closed_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENTFORMER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".cache" / "entformer"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert native._own_folder() == folder
    assert folder.stat().st_mode & 0o777 == 0o755


def test_where_the_home_is_not_safe_a_folder_of_the_user_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENTFORMER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    home.mkdir()
    home.chmod(0o777)
    temporary.mkdir()
    temporary.chmod(0o1777)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(cache_module.tempfile, "tempdir", str(temporary))
    assert native._own_folder() == temporary / f"entformer-{os.getuid()}"


def test_without_home_and_user_entry_there_is_still_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("ENTFORMER_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.setattr(cache_module.tempfile, "tempdir", str(tmp_path))
    assert cache_module.cache_root() == tmp_path / f"entformer-{os.getuid()}"
    from entformer.training.corpora import cache_folder

    assert cache_folder() == tmp_path / f"entformer-{os.getuid()}" / "corpora"


def failing(problem: Exception) -> Callable[[], Path]:
    def fail() -> Path:
        raise problem

    return fail


@pytest.mark.parametrize("problem", [FileNotFoundError(2, "No usable temporary directory"), RuntimeError("no home")])
def test_what_the_system_refuses_is_a_reason_and_no_crash(problem: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_state", {})
    monkeypatch.setattr(native, "cache_root", failing(problem))
    assert "the C++ kernels cannot be prepared" in str(native.load())
