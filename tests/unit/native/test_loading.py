"""Loading the kernels: the cache, damaged libraries, and the reason where there can be no library."""

import errno
import hashlib
import os
import re
import shutil
import subprocess
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from entformer.errors import ImplUnavailable
from entformer.kernels import native
from entformer.kernels.entmax.api import entmax
from entformer.kernels.registry import SlowPathWarning
from entformer.kernels.sources import BINDINGS, HEADERS, KERNELS, SOURCES, compile_jobs

from .conftest import LONG, calls, script, start, wait_for

DOCS = Path(__file__).parents[3] / "docs" / "kernels.md"


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:20]


# ---- building and loading -----------------------------------------------------------------------------------------------


def test_an_empty_cache_gets_one_whole_library_that_needs_no_compiler_later(
    cache: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert native.load() is None
    (library,) = cache.glob("*.so")
    assert library.stem.rsplit("-", 1)[1] == checksum(library)
    assert {path.name for path in cache.iterdir()} == {library.name, "build.lock"}  # no scratch is left
    assert (calls(compiler, "compiled"), calls(compiler, "linked")) == (len(compile_jobs()), 1)

    (cache / "build.lock").unlink()
    compiler.unlink()
    built = library.stat().st_mtime_ns
    monkeypatch.setattr(native, "_state", {})
    assert native.load() is None
    assert native.library_path() == library
    assert [path.name for path in cache.iterdir()] == [library.name]  # the second time nothing is written
    assert library.stat().st_mtime_ns == built


@pytest.mark.parametrize("compilers", [1, 2])
def test_processes_at_once_build_each_library_once(
    compilers: int, cache: Path, compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wait").touch()
    first = start()
    if compilers == 2:  # its name is part of the key
        monkeypatch.setenv("CXX", str(script(tmp_path / "other-c++", f'exec "{compiler}" "$@"\n')))
    second = start()
    wait_for(tmp_path / "log", first)
    (tmp_path / "wait").unlink()
    printed = {process.communicate(timeout=LONG)[0] for process in (first, second)}
    assert printed == {f"kernels: {library} (portable)\n" for library in cache.glob("*.so")}
    assert (len(printed), calls(compiler, "linked")) == (compilers, compilers)
    assert not list(cache.glob("build-*"))


def test_eight_threads_at_once_build_once(cache: Path, compiler: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: native.load(), range(8))) == [None] * 8
    assert calls(compiler, "linked") == 1


@pytest.mark.parametrize("damage", ["truncated", "garbage under its own checksum"])
def test_a_damaged_library_is_built_again(damage: str, cache: Path, compiler: Path, library: Path) -> None:
    cache.mkdir(parents=True)
    content = library.read_bytes()[:5000] if damage == "truncated" else b"not a library"
    named_after = checksum(library) if damage == "truncated" else hashlib.sha256(content).hexdigest()[:20]
    (cache / f"kernels-{native._key()}-{named_after}.so").write_bytes(content)
    (cache / "build-left-behind").mkdir()  # by a process that died
    (cache / "build.lock").touch()
    # Of other sources: not ours to load, and not ours to delete, for another installation may use it.
    stale = cache / f"kernels-{'0' * 20}-{hashlib.sha256(b'stale').hexdigest()[:20]}.so"
    stale.write_bytes(b"stale")
    assert native.load() is None
    assert calls(compiler, "linked") == 1
    found = native.library_path()
    assert found == cache / f"kernels-{native._key()}-{checksum(library)}.so"
    assert found.read_bytes() == library.read_bytes()
    assert sorted(cache.glob("*.so")) == sorted([found, stale])
    assert not (cache / "build-left-behind").exists()


def test_the_key_covers_every_source() -> None:
    """Each file that the compiled sources include, directly or not, decides the name of the library."""
    waiting = [*BINDINGS, *KERNELS]
    seen: set[str] = set()
    while waiting:
        seen.add(name := waiting.pop())
        included = re.findall(r'^#include "([^"]+)"', (SOURCES / name).read_text(), re.MULTILINE)
        waiting += set(included) - seen
    assert seen <= {*BINDINGS, *KERNELS, *HEADERS}


# ---- when there can be no library ---------------------------------------------------------------------------------------


def check_reference(reason: str) -> None:
    """The right numbers, one warning at first use, and the same reason for whoever insists on the kernels."""
    x = torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        weights = entmax(x, 1.5)
        entmax(x, 2.0)
    # 1.5-entmax of (1, 2, 3): the score 1 is out; of the others ((sqrt(7) -+ 1)/4)^2. Equal scores share.
    assert weights[0].tolist() == pytest.approx([0.0, (7**0.5 - 1) ** 2 / 16, (7**0.5 + 1) ** 2 / 16], abs=1e-6)
    assert weights[1].tolist() == pytest.approx([1 / 3] * 3, abs=1e-6)
    (warning,) = (str(w.message) for w in said if w.category is SlowPathWarning)
    assert re.search(reason, warning)
    assert "\n" not in warning
    with pytest.raises(ImplUnavailable, match=reason):
        entmax(x, 1.5, impl="cpu")


BAD_COMPILERS = {
    "absent-c++": (None, r"no C\+\+ compiler was found"),
    "broken-c++": (
        "echo 'In file included from here:'\necho 'a.cpp:7:1: error: boom'\necho 'more'\nexit 1\n",
        r"broken-c\+\+ could not compile \w+\.cpp: a\.cpp:7:1: error: boom",
    ),
    "mute-c++": ("exit 3\n", r"mute-c\+\+ .*exit code 3"),
    "half-c++": (
        'case "$*" in *-shared*) echo "ld: error: cannot find -ltorch_cpu"; exit 1;; esac\n'
        'for a; do [ "$p" = "-o" ] && touch "$a"; p="$a"; done\n',
        r"half-c\+\+ .*cannot find -ltorch_cpu",
    ),
    "idle-c++": (
        "exit 0\n",
        r"idle-c\+\+ compiled \w+\.cpp without an error and produced no output; set CXX to a C\+\+ compiler",
    ),
    "rubbish-c++": ('for a; do [ "$p" = "-o" ] && echo rubbish > "$a"; p="$a"; done\nexit 0\n', "cannot be loaded"),
}


@pytest.mark.parametrize("name", BAD_COMPILERS)
def test_compilers_that_do_not_deliver(name: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body, reason = BAD_COMPILERS[name]
    if body is not None:
        script(tmp_path / name, body)
    monkeypatch.setenv("CXX", str(tmp_path / name))
    check_reference(reason)
    assert list(cache.glob("build-*")) == []


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("CXX", "", r"no C\+\+ compiler was found; install g\+\+ or clang\+\+"),
        ("ENTFORMER_NATIVE", "0", "switched off by ENTFORMER_NATIVE=0"),
    ],
)
def test_no_compiler_or_switched_off(
    variable: str, value: str, reason: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv(variable, value)
    check_reference(reason)


def test_a_file_where_the_cache_should_be(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("in the way")
    check_reference("ENTFORMER_CACHE")
    assert cache.read_text() == "in the way"


@pytest.mark.parametrize("refused", ["os.replace", "tempfile.mkdtemp", "pathlib.Path.mkdir"])
def test_a_cache_that_refuses_a_write(refused: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(refused, full)
    check_reference("No space left on device.*ENTFORMER_CACHE")
    assert not list(cache.glob("*.so"))


@pytest.mark.parametrize("options", ["size=4k", "ro"])
def test_a_disk_that_is_full_or_read_only(options: str, cache: Path) -> None:
    """A real one: a tiny file system, mounted in a namespace of its own that ends with the process."""
    cache.mkdir(parents=True)
    mount = f'mount -t tmpfs -o {options} tmpfs "{cache}" && exec "$@"'
    wrapper = ("unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    if shutil.which("unshare") is None or subprocess.run([*wrapper, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system does not let a process mount a file system of its own")
    out, err = start(wrapper=wrapper).communicate(timeout=LONG)
    assert re.fullmatch(r"kernels: not built, .*ENTFORMER_CACHE.*\n", out), out + err


@pytest.mark.parametrize("problem", [FileNotFoundError(2, "No usable temporary directory"), RuntimeError("no home")])
def test_what_the_system_refuses_is_a_reason_and_no_crash(
    problem: Exception, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Path:
        raise problem

    monkeypatch.setattr(native, "cache_root", fail)
    assert "the C++ kernels cannot be prepared" in str(native.load())


# ---- instruction sets and paths -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("kernels")
def test_an_unknown_instruction_set_changes_nothing() -> None:
    before = native.isa()
    assert before in native.INSTRUCTION_SETS
    assert not native.set_isa("avx1024")
    assert native.isa() == before


@pytest.mark.usefixtures("kernels")
def test_documented_paths_are_those_of_the_kernels() -> None:
    lines = DOCS.read_text().split("| choice | path | condition |\n|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    documented = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    assert documented == native.dispatch_table()
    for choice in {choice for choice, _, _ in documented}:
        paths = [row for row in documented if row[0] == choice]
        assert paths[-1][2] == "otherwise"
        assert len({path for _, path, _ in paths}) == len(paths)
