"""Loads the C++ kernels of `csrc/`, which register themselves as torch operators; compiles them first where it must.

A wheel contains the compiled library, in `prebuilt/`, named by the checksum of the sources it was compiled from; it is loaded
if these are the sources of the package. Otherwise the library is compiled once per (sources, compiler, CPU, torch) into a user
cache (`entformer/cache.py`). A lock keeps two processes from building at once. The name of a cached library has the checksum of
its bytes, so that a truncated file is rebuilt; one that other users could have written is never loaded.
`ENTFORMER_NATIVE=0` switches the kernels off; `ENTFORMER_ISA=avx2` chooses an instruction set; `ENTFORMER_CXXFLAGS` adds
compiler flags. Run as a module (`python -m entformer.kernels.native`) it loads, builds if it must, and reports.
"""

import ctypes
import hashlib
import os
import platform
import stat
import sys
import threading
from pathlib import Path
from typing import NamedTuple

import torch

from entformer.cache import cache_root, temporary_root
from entformer.kernels.build import BuildError, build_directory, compile_library, compiler
from entformer.kernels.sources import compile_jobs, link_flags, sources_hash

__all__ = ["BuildError", "Library", "compiler", "dispatch_table", "isa", "library", "library_path", "load", "set_isa"]

# Widest first; the first two are AVX-512 with other products of bfloat16.
INSTRUCTION_SETS = ("amx", "avx512_bf16", "avx512", "avx2", "portable")
PREBUILT = Path(__file__).parent.parent / "prebuilt"  # only in wheels, by scripts/build_wheel.py


class Library(NamedTuple):
    """A library that is in use."""

    path: Path
    origin: str  # "wheel" or "cache"
    reason: str  # why this one, for the user


_lock = threading.Lock()  # held while building and loading, up to minutes
_opening = threading.RLock()  # held while the library is opened, milliseconds; a fork waits for it
_state: dict[str, Library | str] = {}  # "outcome" once load() has run: the library, or one sentence why there is none


def load() -> str | None:
    """Make the operators available. Returns None, or one sentence saying why they are not. Runs once per process."""
    if "outcome" not in _state:
        with _lock:
            if "outcome" not in _state:
                try:
                    found = _find_and_load()
                    _choose_isa(found.path)
                    _state["outcome"] = found
                except BuildError as problem:
                    _state["outcome"] = str(problem)
                except (OSError, RuntimeError) as problem:
                    _state["outcome"] = f"the C++ kernels cannot be prepared ({_one_line(problem)})."
    outcome = _state["outcome"]
    return outcome if isinstance(outcome, str) else None


def _choose_isa(path: Path) -> None:
    """The instruction set that `ENTFORMER_ISA` names; BuildError if this CPU cannot run it."""
    name = os.environ.get("ENTFORMER_ISA")
    if not name:
        return
    choose = ctypes.CDLL(str(path)).entformer_set_isa
    if choose(name.encode()):
        return
    usable = [other for other in INSTRUCTION_SETS if choose(other.encode())]
    raise BuildError(f"ENTFORMER_ISA={name!r} cannot run on this CPU; set it to one of {', '.join(usable)}, or unset it.")


def _one_line(problem: Exception) -> str:
    return " ".join(str(problem).split())


def _reset_in_child() -> None:
    """After a fork: the thread that held a lock is not in the child, so nobody would ever release it."""
    global _lock, _opening
    _lock, _opening = threading.Lock(), threading.RLock()


# The system's loader has locks of its own, which a child cannot release: fork before or after, not meanwhile.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _opening.acquire(), after_in_parent=lambda: _opening.release(), after_in_child=_reset_in_child
    )


def library() -> Library | None:
    """The library this process runs, where it comes from and why; None if there is none."""
    outcome = _state.get("outcome")
    return outcome if isinstance(outcome, Library) else None


def library_path() -> Path | None:
    """The file of the library this process runs, if any."""
    found = library()
    return found.path if found else None


def isa() -> str:
    """The instruction set in use, one of `INSTRUCTION_SETS`."""
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


def _find_and_load() -> Library:
    if os.environ.get("ENTFORMER_NATIVE") == "0":
        raise BuildError("the C++ kernels are switched off by ENTFORMER_NATIVE=0.")
    if os.name != "posix":
        raise BuildError(f"the C++ kernels are not built on {platform.system()} yet.")
    prebuilt = PREBUILT / f"kernels_{sources_hash()}.so"
    refused = _prebuilt_refused(prebuilt)
    if refused is None:
        return Library(prebuilt, "wheel", "compiled from the sources of this package")
    directory = _own_directory()
    found = _cached(directory)
    if found is None or _load_error(found):
        found = _build(directory)
        if problem := _load_error(found):
            raise BuildError(f"the library just built at {found} cannot be loaded: {problem}")
    return Library(found, "cache", f"compiled on this machine: {refused}")


def _prebuilt_refused(prebuilt: Path) -> str | None:
    """Loads the library of the wheel; if that is not for this process, returns why."""
    if not PREBUILT.is_dir():
        return "this package was installed from source, without a compiled library"
    if _extra_flags():
        return "ENTFORMER_CXXFLAGS asks for other flags than those of the wheel"
    if not prebuilt.exists():
        return "the sources of this package are not those that the library of the wheel was compiled from"
    problem = _load_error(prebuilt)
    return f"the library of the wheel cannot be loaded ({_one_line(problem)})" if problem else None


def _load_error(path: Path) -> OSError | None:
    try:
        with _opening:
            torch.ops.load_library(str(path))
    except OSError as problem:
        return problem
    return None


def _key() -> str:
    """Everything that decides the bytes of the library, except the compiler (asked only when we must build)."""
    digest = hashlib.sha256(sources_hash().encode())
    for part in (torch.__version__, platform.machine(), sys.platform, *_extra_flags(), os.environ.get("CXX", "")):
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
        raise BuildError(
            "no C++ compiler was found; install g++ or clang++ (or set CXX) to get fast kernels, or a wheel, which has them."
        )
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        problem = _writable_by_others(directory, tighten=True)  # directories above may have been made just now
        if problem is not None:
            raise BuildError(f"{problem}; point ENTFORMER_CACHE at a directory that only you can write.")
        with build_directory(directory) as scratch:
            found = _cached(directory)  # another process may have built it while we waited
            if found is not None and _load_error(found) is None:
                return found
            built = compile_library(cxx, compile_jobs(_extra_flags()), link_flags(_extra_flags()), scratch)
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


if __name__ == "__main__":
    problem = load()
    print(f"kernels: {library_path()} ({isa()})" if problem is None else f"kernels: not built, {problem}")
