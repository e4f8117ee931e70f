"""Builds and loads the C++ kernels. In: the sources beside this file. Out: torch operators, or a reason why not.

The library is compiled once per (sources, compiler, CPU, torch) into a user cache and reused by every later process:
`$ENTFORMER_CACHE`, else `$XDG_CACHE_HOME/entformer`, else `~/.cache/entformer`. A lock keeps two processes from building at
once, a rename makes the result appear whole or not at all, and a checksum beside it is verified before loading, so a
truncated or stale file is rebuilt instead of crashing the process. `ENTFORMER_NATIVE=0` switches the kernels off;
`ENTFORMER_CXXFLAGS` adds compiler flags (for sanitizers).

Run as a module (`python -m entformer.kernels.native`) it builds and reports; `make install` does that.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import torch

HERE = Path(__file__).parent
# Bindings are compiled once, against torch's headers; kernels once per instruction set, plain C++.
BINDINGS = ("isa.cpp", "rows/cpu_ops.cpp", "flash/cpu_ops.cpp", "training/cpu_ops.cpp")
KERNELS = ("rows/cpu_kernel.cpp", "flash/cpu_kernel.cpp", "training/cpu_kernel.cpp")
HEADERS = tuple(sorted(str(path.relative_to(HERE)) for path in HERE.rglob("*.h")))

X86_FLAGS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"],
}
# gcc 12's own AVX-512 headers trip its uninitialised-use warning, hence the one exception.
COMMON_FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-ffp-contract=fast",
    "-Wall",
    "-Wextra",
]
COMMON_FLAGS += ["-Wno-maybe-uninitialized", "-Wno-uninitialized"]
TARGET_TORCH = "0x020a000000000000"  # the oldest torch whose stable ABI we use: 2.10

_lock = threading.Lock()
_state: dict[str, str | None] = {}  # "why_not" once load() has run; "path" of the library in use


class BuildError(Exception):
    """Why there is no library: one sentence for the user."""


def load() -> str | None:
    """Make the operators available. Returns None, or one sentence saying why they are not. Runs once per process."""
    if "why_not" in _state:
        return _state["why_not"]
    with _lock:
        if "why_not" not in _state:
            try:
                _state["path"] = str(_build_and_load())
                _state["why_not"] = None
            except BuildError as problem:
                _state["why_not"] = str(problem)
    return _state["why_not"]


def library_path() -> Path | None:
    """The library this process runs, if any."""
    path = _state.get("path")
    return Path(path) if path else None


def isa() -> str:
    """The instruction set in use: "avx512", "avx2" or "portable"."""
    function = _c_library().entformer_isa
    function.restype = ctypes.c_char_p
    return str(function().decode())


def set_isa(name: str) -> bool:
    """Force an instruction set (for tests and benchmarks); False when this CPU cannot run it."""
    return bool(_c_library().entformer_set_isa(name.encode()))


def cache_dir() -> Path:
    """Where built libraries are kept."""
    if explicit := os.environ.get("ENTFORMER_CACHE"):
        return Path(explicit)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "entformer"


def compiler() -> str | None:
    """The C++ compiler: `$CXX`, else the first of c++, g++, clang++ on the path."""
    named = os.environ.get("CXX")
    if named:
        return shutil.which(named)
    return next((found for name in ("c++", "g++", "clang++") if (found := shutil.which(name))), None)


def _c_library() -> ctypes.CDLL:
    why_not = load()
    if why_not is not None:
        raise BuildError(why_not)
    return ctypes.CDLL(str(library_path()))


def _build_and_load() -> Path:
    if os.environ.get("ENTFORMER_NATIVE") == "0":
        raise BuildError("the C++ kernels are switched off by ENTFORMER_NATIVE=0.")
    if os.name != "posix":
        raise BuildError(f"the C++ kernels are not built on {platform.system()} yet.")
    folder = cache_dir()
    found = _cached(folder)
    if found is None or not _try_load(found):
        found = _build(folder)
        if not _try_load(found):
            raise BuildError(f"the library just built at {found} cannot be loaded: {_state.get('load_error')}")
    return found


def _try_load(path: Path) -> bool:
    try:
        torch.ops.load_library(str(path))
    except OSError as problem:
        _state["load_error"] = str(problem)
        return False
    return True


def _key() -> str:
    """Everything that decides the bytes of the library, except the compiler (asked only when we must build)."""
    digest = hashlib.sha256()
    for name in (*BINDINGS, *KERNELS, *HEADERS):
        digest.update((HERE / name).read_bytes())
    flags = [*COMMON_FLAGS, *_extra_flags()]
    for part in (torch.__version__, platform.machine(), sys.platform, " ".join(flags), os.environ.get("CXX", "")):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:20]


def _extra_flags() -> list[str]:
    return os.environ.get("ENTFORMER_CXXFLAGS", "").split()


def _cached(folder: Path) -> Path | None:
    """The library for these sources if it is there whole. The file name carries the checksum of its bytes."""
    try:
        for path in sorted(folder.glob(f"kernels-{_key()}-*.so")):
            if path.stem.rsplit("-", 1)[1] == hashlib.sha256(path.read_bytes()).hexdigest()[:20]:
                return path
    except OSError:
        return None
    return None


def _build(folder: Path) -> Path:
    cxx = compiler()
    if cxx is None:
        raise BuildError("no C++ compiler was found; install g++ or clang++ (or set CXX) to get the fast kernels.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _only_one_builder(folder):
            found = _cached(folder)  # another process may have built it while we waited
            if found is not None and _try_load(found):
                return found
            with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as scratch:
                built = _compile(cxx, Path(scratch))
                checksum = hashlib.sha256(built.read_bytes()).hexdigest()[:20]
                final = folder / f"kernels-{_key()}-{checksum}.so"
                os.replace(built, final)
                for stale in folder.glob(f"kernels-{_key()}-*.so"):
                    if stale != final:
                        stale.unlink(missing_ok=True)
            return final
    except OSError as problem:
        raise BuildError(
            f"the kernel cache {folder} cannot be written ({problem.strerror or problem}); "
            "free some space or point ENTFORMER_CACHE at a writable folder."
        ) from problem


@contextlib.contextmanager
def _only_one_builder(folder: Path) -> Iterator[None]:
    import fcntl  # posix only

    with open(folder / "build.lock", "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)  # released when the file closes, also if the process dies
        yield


def _compile(cxx: str, scratch: Path) -> Path:
    """Compile every source into `scratch`, in parallel, and link them. Returns the library's path."""
    include = Path(torch.__file__).parent / "include"
    torch_flags = [f"-I{include}", f"-I{include}/torch/csrc/api/include", f"-DTORCH_TARGET_VERSION={TARGET_TORCH}"]
    x86 = platform.machine() in ("x86_64", "AMD64")
    jobs = [(source, torch_flags) for source in BINDINGS]
    for source in KERNELS:
        jobs += [(source, flags) for name, flags in X86_FLAGS.items() if x86 or name == "portable"]
    objects, running = [], []
    for number, (source, flags) in enumerate(jobs):
        target = scratch / f"{number}.o"
        command = [cxx, *COMMON_FLAGS, *flags, *_extra_flags(), "-c", str(HERE / source), "-o", str(target)]
        running.append((command, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)))
        objects.append(str(target))
    outputs = [(command, process.communicate()[0], process.returncode) for command, process in running]
    library = scratch / "kernels.so"
    link = [
        cxx,
        "-shared",
        *_extra_flags(),
        *objects,
        "-o",
        str(library),
        f"-L{Path(torch.__file__).parent / 'lib'}",
        "-ltorch_cpu",
    ]
    if all(code == 0 for _, _, code in outputs):
        done = subprocess.run(link, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        outputs.append((link, done.stdout, done.returncode))
    for command, text, code in outputs:
        if code != 0 and os.strerror(errno.ENOSPC) in text:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if code != 0:
            lines = (
                [line for line in text.splitlines() if "error" in line.lower()] or text.splitlines() or [f"exit code {code}"]
            )
            raise BuildError(f"{Path(cxx).name} could not compile {Path(command[-3]).name}: {lines[0].strip()}.")
    return library


if __name__ == "__main__":
    problem = load()
    print(f"kernels: {library_path()} ({isa()})" if problem is None else f"kernels: not built, {problem}")
