"""A tiny library in place of the kernels, and a script in place of the compiler: builds are quick."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import entformer
from entformer.kernels import native, registry

LONG = 60.0  # seconds until a test that hangs is given up; none takes as long

# Registers no operators, so that a process can load any number of copies.
SOURCE = 'extern "C" const char* entformer_isa() { return "portable"; }\n'

ARGUMENTS = """
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


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cxx = native.compiler()
    if cxx is None:
        pytest.skip("there is no C++ compiler to build with")
    directory = tmp_path_factory.mktemp("library")
    (directory / "tiny.cpp").write_text(SOURCE)
    subprocess.run([*cxx, "-shared", "-fPIC", str(directory / "tiny.cpp"), "-o", str(directory / "tiny.so")], check=True)
    return directory / "tiny.so"


@pytest.fixture
def compiler(tmp_path: Path, library: Path) -> Path:
    """Compiles nothing, links by copying `library`, and writes both to "log"; does not link while there is "wait"."""
    body = f"""{ARGUMENTS}
[ -z "$linking" ] && {{ echo compiled >> "{tmp_path}/log"; exec touch "$target"; }}
echo linked >> "{tmp_path}/log"
while [ -e "{tmp_path}/wait" ]; do sleep 0.02; done
exec cp "{library}" "$target"
"""
    return script(tmp_path / "pretend-c++", body)


@pytest.fixture
def cache(tmp_path: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache, not made yet, of a process that has not loaded the kernels yet and has none of a wheel."""
    monkeypatch.setattr(native, "_state", {})
    monkeypatch.setattr(native, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setattr(registry, "_already_said", set())
    for name in ("ENTFORMER_NATIVE", "ENTFORMER_CXXFLAGS", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ENTFORMER_CACHE", str(tmp_path / "new" / "cache"))
    monkeypatch.setenv("CXX", str(compiler))
    return tmp_path / "new" / "cache"


def calls(compiler: Path, what: str) -> int:
    log = compiler.parent / "log"
    return log.read_text().split().count(what) if log.exists() else 0


def start(*arguments: str, wrapper: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Starts Python with the environment of this process; by default it loads the kernels and prints where they are."""
    command = [*wrapper, sys.executable, *(arguments or ("-m", "entformer.kernels.native"))]
    environment = os.environ | {"PYTHONPATH": str(Path(entformer.__file__).parent.parent), "OMP_NUM_THREADS": "1"}

    def restore() -> None:  # a shell starts background jobs, and so these tests, with SIGINT ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=restore
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + LONG
    while not path.exists() or not path.read_text():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
