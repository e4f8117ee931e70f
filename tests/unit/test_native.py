"""Building and loading the C++ kernels, each case in a fresh process with its own cache folder.

One real build serves all of them. Where a build is not the point, a script stands in for the compiler: it writes down that it
was called and "links" by copying the library of the real build.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import entformer
from entformer.errors import ImplUnavailable
from entformer.kernels import native
from entformer.kernels import registry as choice
from entformer.kernels.entmax.api import entmax

PACKAGES = Path(entformer.__file__).parent.parent

# One call in a fresh process; prints its result and its warnings as JSON.
USE = """
import json, warnings
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    import entformer
    from entformer.kernels import native
    at_import = len(said)
    import torch
    torch.set_num_threads(1)
    {before}
    x = torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    weights = entformer.entmax(x, 1.5)
    entformer.entmax(x, 2.0)
    try:
        entformer.entmax(x, 1.5, impl="cpu")
        refusal = None
    except entformer.ImplUnavailable as problem:
        refusal = str(problem)
print(json.dumps(dict(
    weights=weights.tolist(),
    refusal=refusal,
    at_import=at_import,
    said=[str(w.message) for w in said if w.category is entformer.SlowPathWarning],
    library=str(native.library_path()),
)))
"""

# 1.5-entmax of (1, 2, 3): the score 1 is out; of the others ((sqrt(7) -+ 1)/4)^2. Equal scores share.
RIGHT = [[0.0, (7**0.5 - 1) ** 2 / 16, (7**0.5 + 1) ** 2 / 16], [1 / 3, 1 / 3, 1 / 3]]


@dataclass
class Answer:
    """What one process reported."""

    weights: list[list[float]]
    refusal: str | None
    at_import: int
    said: list[str]
    library: str

    def check_kernels(self) -> None:
        assert (self.refusal, self.said, self.at_import) == (None, [], 0)
        self._check_weights()

    def check_reference(self, reason: str) -> None:
        """The right numbers, one warning at first use, and the same reason for whoever insists on the kernels."""
        self._check_weights()
        assert self.at_import == 0
        assert len(self.said) == 1
        assert re.search(reason, self.said[0])
        assert self.refusal is not None
        assert re.search(reason, self.refusal)
        assert "\n" not in self.said[0]

    def _check_weights(self) -> None:
        for ours, right in zip(self.weights, RIGHT, strict=True):
            assert ours == pytest.approx(right, abs=1e-6)


def start(
    cache: Path, compiler: Path | None, *, before: str = "", wrapper: tuple[str, ...] = (), code: str = USE, **environment: str
) -> subprocess.Popen[str]:
    """A fresh process. With no `compiler` there is none on its path either."""
    kept = {name: value for name, value in os.environ.items() if name not in ("CXX", "ENTFORMER_NATIVE", "XDG_CACHE_HOME")}
    kept |= {"ENTFORMER_CACHE": str(cache), "PYTHONPATH": str(PACKAGES)}
    kept |= {"CXX": str(compiler)} if compiler else {"PATH": str(cache.parent / "nothing")}
    command = [*wrapper, sys.executable, "-c", code.replace("{before}", before)]
    return subprocess.Popen(command, env=kept | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> Answer:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return Answer(**json.loads(out.splitlines()[-1]))


def libraries(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.so"))


def checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:20]


def script(path: Path, body: str) -> Path:
    path.write_text("#!/bin/sh\n" + body)
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def compiler() -> str:
    found = native.compiler()
    if found is None:
        pytest.skip("there is no C++ compiler to build with")
    return found[0]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, compiler: str) -> tuple[Path, Path]:
    """A cache with the library of one real build, and a compiler that keeps a log of its calls."""
    folder = tmp_path_factory.mktemp("built")
    logging = script(folder / "logging-c++", f'echo called >> "{folder}/log"\nexec "{compiler}" "$@"\n')
    cache = folder / "new" / "cache"  # neither exists yet
    finish(start(cache, logging)).check_kernels()
    return cache, logging


@pytest.fixture
def pretender(tmp_path: Path, built: tuple[Path, Path]) -> Path:
    """A compiler in name only; slow enough for two processes to meet."""
    (library,) = libraries(built[0])
    return script(
        tmp_path / "pretend-c++",
        f"""
for argument; do
  [ "$previous" = "-o" ] && target="$argument"
  [ "$argument" = "-shared" ] && linking=1
  previous="$argument"
done
[ -z "$linking" ] && exec touch "$target"
echo linked >> "{tmp_path}/log"
sleep 0.5
exec cp "{library}" "$target"
""",
    )


def links(tmp_path: Path) -> int:
    log = tmp_path / "log"
    return len(log.read_text().splitlines()) if log.exists() else 0


# ---- building -----------------------------------------------------------------------------------------------------------


def test_an_empty_cache_gets_one_whole_library(built: tuple[Path, Path]) -> None:
    cache, logging = built
    (library,) = libraries(cache)
    assert library.stem.rsplit("-", 1)[1] == checksum(library)
    assert {path.name for path in cache.iterdir()} == {library.name, "build.lock"}  # no scratch is left
    kinds = len(native.X86_FLAGS) if native.platform.machine() in ("x86_64", "AMD64") else 1
    calls = len((logging.parent / "log").read_text().splitlines())
    assert calls == len(native.BINDINGS) + kinds * len(native.KERNELS) + 1  # each source once, and the link


def test_a_second_process_needs_no_compiler(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Nor does it write anything: the folder may be read-only by then."""
    (library,) = libraries(built[0])
    cache = tmp_path / "cache"
    cache.mkdir(mode=0o700)
    shutil.copy(library, cache)
    before = (cache / library.name).stat()
    # The name of the compiler is part of the key, so it stays; that it can be found no more does not matter.
    answer = finish(start(cache, built[1], PATH=str(tmp_path / "nothing")))
    answer.check_kernels()
    assert answer.library == str(cache / library.name)
    assert [path.name for path in cache.iterdir()] == [library.name]
    assert (cache / library.name).stat().st_mtime_ns == before.st_mtime_ns


def test_two_processes_at_once_build_once(tmp_path: Path, pretender: Path) -> None:
    cache = tmp_path / "cache"
    processes = [start(cache, pretender) for _ in range(2)]
    answers = [finish(process) for process in processes]
    for answer in answers:
        answer.check_kernels()
    assert links(tmp_path) == 1
    assert [str(path) for path in libraries(cache)] == [answers[0].library] == [answers[1].library]


def test_eight_threads_at_once_build_once(tmp_path: Path, pretender: Path) -> None:
    together = (
        "from concurrent.futures import ThreadPoolExecutor as Pool; pool = Pool(8);"
        "assert all((w - 0.5).abs().max() < 1e-6 for w in pool.map(lambda _: entformer.entmax(torch.ones(2), 1.5), range(8)))"
    )
    finish(start(tmp_path / "cache", pretender, before=together)).check_kernels()
    assert links(tmp_path) == 1


@pytest.mark.parametrize("damage", ["truncated", "garbage under its own checksum"])
def test_a_damaged_library_is_built_again(damage: str, tmp_path: Path, pretender: Path, built: tuple[Path, Path]) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (good,) = libraries(built[0])
    content = good.read_bytes()[:5000] if damage == "truncated" else b"not a library"
    named_after = checksum(good) if damage == "truncated" else hashlib.sha256(content).hexdigest()[:20]
    key = _key_with(pretender)
    (cache / f"kernels-{key}-{named_after}.so").write_bytes(content)
    (cache / "build-left-behind").mkdir()  # by a process that died
    (cache / "build.lock").touch()
    # Of other sources: not ours to load, and not ours to delete, for another installation may use it.
    stale = cache / f"kernels-{'0' * 20}-{hashlib.sha256(b'stale').hexdigest()[:20]}.so"
    stale.write_bytes(b"stale")
    answer = finish(start(cache, pretender))
    answer.check_kernels()
    assert links(tmp_path) == 1
    library = cache / f"kernels-{key}-{checksum(good)}.so"
    assert answer.library == str(library)
    assert libraries(cache) == sorted([library, stale])
    assert library.read_bytes() == good.read_bytes()
    assert not (cache / "build-left-behind").exists()
    assert stale.read_bytes() == b"stale"


def test_the_key_covers_every_source() -> None:
    """Each file that the compiled sources include, directly or not, decides the name of the library."""
    listed = {*native.BINDINGS, *native.KERNELS, *native.HEADERS}
    waiting = [*native.BINDINGS, *native.KERNELS]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        path = native.SOURCES / name
        for included in re.findall(r'^#include "([^"]+)"', path.read_text(), re.MULTILINE):
            relative = (path.parent / included).resolve().relative_to(native.SOURCES.resolve()).as_posix()
            if relative not in seen:
                waiting.append(relative)
    assert seen <= listed


def _key_with(compiler: Path) -> str:
    before = os.environ.get("CXX")
    os.environ["CXX"] = str(compiler)
    try:
        return native._key()
    finally:
        del os.environ["CXX"]
        if before is not None:
            os.environ["CXX"] = before


# ---- when there can be no library ---------------------------------------------------------------------------------------


def test_no_compiler(tmp_path: Path) -> None:
    finish(start(tmp_path / "cache", None)).check_reference(r"no C\+\+ compiler was found; install g\+\+ or clang\+\+")


@pytest.mark.parametrize("options", ["size=64k", "ro"])
def test_a_disk_that_is_full_or_read_only(options: str, tmp_path: Path, pretender: Path) -> None:
    """A real one: a tiny file system, mounted in a namespace of its own that ends with the process."""
    cache = tmp_path / "cache"
    cache.mkdir()
    mount = f'mount -t tmpfs -o {options} tmpfs "{cache}" && exec "$@"'
    wrapper = ("unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh")
    if shutil.which("unshare") is None or subprocess.run([*wrapper, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system does not let a process mount a file system of its own")
    finish(start(cache, pretender, wrapper=wrapper)).check_reference("ENTFORMER_CACHE")


@pytest.fixture
def first_use(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], Answer]:
    """First use in this process, as if the kernels had never been asked for. Only for cases in which none gets loaded."""

    def use() -> Answer:
        x = torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            weights = entmax(x, 1.5)
            entmax(x, 2.0)
        with pytest.raises(ImplUnavailable) as refusal:
            entmax(x, 1.5, impl="cpu")
        return Answer(weights.tolist(), str(refusal.value), 0, [str(w.message) for w in said], str(native.library_path()))

    monkeypatch.setattr(native, "_state", {})
    monkeypatch.setattr(choice, "_already_said", set())
    monkeypatch.setenv("ENTFORMER_CACHE", str(tmp_path / "cache"))
    return use


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
    "clang-c++": (
        'case "$*" in --version) echo "clang version 99"; exit 0;; esac\necho "a.h:1: error: boom"\nexit 1\n',
        r"clang-c\+\+ could not compile .*boom \(this is clang; the kernels are developed with g\+\+, so try CXX=g\+\+\)",
    ),
    "rubbish-c++": ('for a; do [ "$p" = "-o" ] && echo rubbish > "$a"; p="$a"; done\nexit 0\n', "cannot be loaded"),
}


@pytest.mark.parametrize("name", BAD_COMPILERS)
def test_compilers_that_do_not_deliver(
    name: str, first_use: Callable[[], Answer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, reason = BAD_COMPILERS[name]
    if body is not None:
        script(tmp_path / name, body)
    monkeypatch.setenv("CXX", str(tmp_path / name))
    first_use().check_reference(reason)
    assert list((tmp_path / "cache").glob("build-*")) == []


def test_switched_off(first_use: Callable[[], Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENTFORMER_NATIVE", "0")
    first_use().check_reference("switched off by ENTFORMER_NATIVE=0")


def test_a_file_where_the_cache_should_be(
    first_use: Callable[[], Answer], tmp_path: Path, pretender: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("in the way")
    monkeypatch.setenv("CXX", str(pretender))
    first_use().check_reference("ENTFORMER_CACHE")
    assert (tmp_path / "cache").read_text() == "in the way"


@pytest.mark.parametrize("refused", ["os.replace", "tempfile.mkdtemp", "pathlib.Path.mkdir"])
def test_a_cache_that_refuses_a_write(
    refused: str, first_use: Callable[[], Answer], tmp_path: Path, pretender: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setenv("CXX", str(pretender))
    monkeypatch.setattr(refused, full)
    first_use().check_reference("No space left on device.*ENTFORMER_CACHE")
    assert libraries(tmp_path / "cache") == []


# ---- the rest of the module ---------------------------------------------------------------------------------------------


def test_run_as_a_module_it_builds_and_reports(built: tuple[Path, Path]) -> None:
    environment = os.environ | {"ENTFORMER_CACHE": str(built[0]), "PYTHONPATH": str(PACKAGES), "CXX": str(built[1])}
    command = [sys.executable, "-m", "entformer.kernels.native"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    (library,) = libraries(built[0])
    assert re.fullmatch(rf"kernels: {re.escape(str(library))} \((avx512|avx2|portable)\)\n", done.stdout), done.stderr
    off = subprocess.run(command, env=environment | {"ENTFORMER_NATIVE": "0"}, capture_output=True, text=True, check=False)
    assert "not built" in off.stdout
    assert "ENTFORMER_NATIVE=0" in off.stdout


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ENTFORMER_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert native.cache_dir() == tmp_path / ".cache" / "entformer"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert native.cache_dir() == tmp_path / "xdg" / "entformer"
    monkeypatch.setenv("ENTFORMER_CACHE", str(tmp_path / "mine"))
    assert native.cache_dir() == tmp_path / "mine"


@pytest.mark.usefixtures("kernels")
def test_an_unknown_instruction_set_changes_nothing() -> None:
    before = native.isa()
    assert before in ("avx512", "avx2", "portable")
    assert not native.set_isa("avx1024")
    assert native.isa() == before
