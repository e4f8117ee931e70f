"""Builds and loads the C++ kernels of `csrc/`, which register themselves as torch operators.

The library is compiled once per (sources, compiler, CPU, torch) into a user cache (`entformer/cache.py`). A lock keeps two
processes from building at once, and a checksum in its name is verified before loading, so that a truncated file is rebuilt. A
library that other users could have written is never loaded. `ENTFORMER_NATIVE=0` switches the kernels off; `ENTFORMER_CXXFLAGS`
adds compiler flags. Run as a module (`python -m entformer.kernels.native`) it builds and reports.
"""

import ctypes
import hashlib
import os
import platform
import stat
import sys
import threading
from pathlib import Path

import torch

from entformer.cache import cache_root, temporary_root
from entformer.kernels.build import BuildError, build_directory, compile_library, compiler

__all__ = ["BuildError", "compiler", "dispatch_table", "isa", "library_path", "load", "set_isa"]

SOURCES = Path(__file__).parent.parent / "csrc"
# Bindings are compiled once, against torch's headers; kernels once per instruction set, plain C++.
BINDINGS = ("isa.cpp", "bindings.cpp")
KERNELS = ("kernels.cpp",)
HEADERS = tuple(sorted(path.name for path in SOURCES.glob("*.h")))

X86_FLAGS = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": ["-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512"],
}
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
COMMON_FLAGS += ["-Wno-maybe-uninitialized", "-Wno-uninitialized"]  # gcc 12's own AVX-512 headers trip both
TARGET_TORCH = "0x020a000000000000"  # the oldest torch whose stable ABI we use: 2.10

_lock = threading.Lock()  # held while building and loading, up to minutes
_opening = threading.RLock()  # held while the library is opened, milliseconds; a fork waits for it
_state: dict[str, str | None] = {}  # "why_not" once load() has run; "path" of the library in use


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
            except (OSError, RuntimeError) as problem:
                _state["why_not"] = f"the C++ kernels cannot be prepared ({' '.join(str(problem).split())})."
    return _state["why_not"]


def _reset_in_child() -> None:
    """After a fork: the thread that held a lock is not in the child, so nobody would ever release it."""
    global _lock, _opening
    _lock, _opening = threading.Lock(), threading.RLock()


# The system's loader has locks of its own, which a child cannot release: fork before or after, not meanwhile.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _opening.acquire(), after_in_parent=lambda: _opening.release(), after_in_child=_reset_in_child
    )


def library_path() -> Path | None:
    """The library this process runs, if any."""
    path = _state.get("path")
    return Path(path) if path else None


def isa() -> str:
    """The instruction set in use: "avx512", "avx2" or "portable"."""
    return _text("entformer_isa")


def set_isa(name: str) -> bool:
    """Force an instruction set (for tests and benchmarks); False when this CPU cannot run it."""
    return bool(_c_library().entformer_set_isa(name.encode()))


def dispatch_table() -> list[tuple[str, str, str]]:
    """Returns which path the kernels take when, as (choice, path, condition); the first condition that holds wins."""
    lines = _text("entformer_dispatch_table").splitlines()
    return [(choice, path, condition) for choice, path, condition in (line.split("\t") for line in lines)]


def _c_library() -> ctypes.CDLL:
    why_not = load()
    if why_not is not None:
        raise BuildError(why_not)
    return ctypes.CDLL(str(library_path()))


def _text(name: str) -> str:
    function = _c_library()[name]
    function.restype = ctypes.c_char_p
    return str(function().decode())


def _build_and_load() -> Path:
    if os.environ.get("ENTFORMER_NATIVE") == "0":
        raise BuildError("the C++ kernels are switched off by ENTFORMER_NATIVE=0.")
    if os.name != "posix":
        raise BuildError(f"the C++ kernels are not built on {platform.system()} yet.")
    directory = _own_directory()
    found = _cached(directory)
    if found is None or _load_error(found):
        found = _build(directory)
        if problem := _load_error(found):
            raise BuildError(f"the library just built at {found} cannot be loaded: {problem}")
    return found


def _load_error(path: Path) -> OSError | None:
    try:
        with _opening:
            torch.ops.load_library(str(path))
    except OSError as problem:
        return problem
    return None


def _key() -> str:
    """Everything that decides the bytes of the library, except the compiler (asked only when we must build)."""
    digest = hashlib.sha256()
    for name in (*BINDINGS, *KERNELS, *HEADERS):
        digest.update((SOURCES / name).read_bytes())
    flags = [*COMMON_FLAGS, *_extra_flags()]
    for part in (torch.__version__, platform.machine(), sys.platform, " ".join(flags), os.environ.get("CXX", "")):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:20]


def _extra_flags() -> list[str]:
    return os.environ.get("ENTFORMER_CXXFLAGS", "").split()


def _cached(directory: Path) -> Path | None:
    """The library for these sources if it is there whole. The file name carries the checksum of its bytes."""
    try:
        for path in sorted(directory.glob(f"kernels-{_key()}-*.so")):
            if not _only_ours(path):
                continue
            if path.stem.rsplit("-", 1)[1] == hashlib.sha256(path.read_bytes()).hexdigest()[:20]:
                return path
    except OSError:
        return None
    return None


# ---- who else may write -------------------------------------------------------------------------------------------------


def _own_directory() -> Path:
    """The cache directory, free of what others could have put there; if the default one is not, one of our own."""
    explicit = bool(os.environ.get("ENTFORMER_CACHE") or os.environ.get("XDG_CACHE_HOME"))
    directory = Path(os.path.realpath(cache_root()))
    problem = _writable_by_others(directory, tighten=not explicit)
    if problem is not None and not explicit:
        directory = Path(os.path.realpath(temporary_root()))
        problem = _writable_by_others(directory, tighten=False)
    if problem is not None:
        raise BuildError(
            f"{problem}, so a library in the kernel cache {directory} could be another user's; point ENTFORMER_CACHE at a "
            "directory that only you can write."
        )
    return directory


def _trusted_users() -> set[int]:
    """Root and this user; in a user namespace whoever owns "/" is root."""
    return {0, os.geteuid(), os.stat("/").st_uid}


def _only_ours(path: Path) -> bool:
    """Whether a file is a regular one that only trusted users can write."""
    info = path.lstat()
    return stat.S_ISREG(info.st_mode) and info.st_uid in _trusted_users() and not info.st_mode & 0o022


def _writable_by_others(directory: Path, *, tighten: bool) -> str | None:
    """Why others could put a file into `directory` or exchange one above it; None if they cannot.

    A directory above may be writable by all if it is sticky (/tmp), or by a group that is the user's alone. `tighten`: take the
    others' right to write away from a directory of ours instead.
    """
    for place in (directory, *directory.parents):
        try:
            info = place.stat()
        except FileNotFoundError:
            continue  # made by us, for us alone
        except OSError:
            return None  # a file in the way, or no right to look: making the directory says so
        if info.st_uid not in _trusted_users():
            return f"{place} belongs to another user (number {info.st_uid})"
        others = info.st_mode & 0o022
        own_group = others == 0o020 and info.st_gid in (0, os.geteuid())  # by custom it has the user's number
        if place == directory and others and tighten and info.st_uid == os.geteuid():
            place.chmod(stat.S_IMODE(info.st_mode) & ~0o022)
        elif others and place == directory:
            return f"{place} can be written by others (chmod go-w would end that)"
        elif others and not info.st_mode & stat.S_ISVTX and not own_group:
            return f"{place} can be written by others"
    return None


# ---- building -----------------------------------------------------------------------------------------------------------


def _build(directory: Path) -> Path:
    cxx = compiler()
    if cxx is None:
        raise BuildError("no C++ compiler was found; install g++ or clang++ (or set CXX) to get the fast kernels.")
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = _writable_by_others(directory, tighten=True)  # directories above may have been made just now
        if problem is not None:
            raise BuildError(f"{problem}; point ENTFORMER_CACHE at a directory that only you can write.")
        with build_directory(directory) as scratch:
            found = _cached(directory)  # another process may have built it while we waited
            if found is not None and _load_error(found) is None:
                return found
            link_flags = [*_extra_flags(), f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu"]
            built = compile_library(cxx, _sources(), link_flags, scratch)
            built.chmod(0o755)
            checksum = hashlib.sha256(built.read_bytes()).hexdigest()[:20]
            final = directory / f"kernels-{_key()}-{checksum}.so"
            os.replace(built, final)
            for stale in directory.glob(f"kernels-{_key()}-*.so"):
                if stale != final:
                    stale.unlink(missing_ok=True)
        return final
    except OSError as problem:
        raise BuildError(
            f"the kernel cache {directory} cannot be written ({problem.strerror or problem}); "
            "free some space or point ENTFORMER_CACHE at a writable directory."
        ) from problem


def _sources() -> list[tuple[Path, list[str]]]:
    """Every source to compile, with its flags."""
    include = Path(torch.__file__).parent / "include"
    torch_flags = [f"-I{include}", f"-I{include}/torch/csrc/api/include", f"-DTORCH_TARGET_VERSION={TARGET_TORCH}"]
    x86 = platform.machine() in ("x86_64", "AMD64")
    jobs = [(source, torch_flags) for source in BINDINGS]
    for source in KERNELS:
        jobs += [(source, flags) for name, flags in X86_FLAGS.items() if x86 or name == "portable"]
    return [(SOURCES / source, [*COMMON_FLAGS, *flags, *_extra_flags()]) for source, flags in jobs]


if __name__ == "__main__":
    problem = load()
    print(f"kernels: {library_path()} ({isa()})" if problem is None else f"kernels: not built, {problem}")
