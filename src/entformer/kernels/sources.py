"""What the library of C++ kernels is compiled from, and how: for the loader and for wheels alike."""

import hashlib
import platform
from collections.abc import Sequence
from pathlib import Path

import torch

SOURCES = Path(__file__).parent.parent / "csrc"
# Bindings are compiled once, against torch's headers; kernels once per instruction set, plain C++.
BINDINGS = ("isa.cpp", "bindings.cpp", "older_systems.cpp")
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
    "-DTORCH_TARGET_VERSION=0x020a000000000000",  # the oldest torch whose stable ABI we use: 2.10
]


def sources_hash() -> str:
    """Returns a checksum of the sources and of the flags they are compiled with."""
    digest = hashlib.sha256()
    for name in (*BINDINGS, *KERNELS, *HEADERS):
        digest.update((SOURCES / name).read_bytes())
    digest.update(repr((COMMON_FLAGS, X86_FLAGS)).encode())
    return digest.hexdigest()[:20]


def compile_jobs(extra_flags: Sequence[str] = ()) -> list[tuple[Path, list[str]]]:
    """Returns every source to compile, with its flags; those of `extra_flags` come last."""
    include = (Path(torch.__file__).parent / "include").resolve()  # as the compiler names headers
    # Short names in error messages: the bytes of the library do not depend on the directories it was compiled in.
    short = [f"-ffile-prefix-map={SOURCES}=csrc", f"-ffile-prefix-map={include}/="]
    x86 = platform.machine() in ("x86_64", "AMD64")
    jobs = [(source, [*short, f"-isystem{include}"]) for source in BINDINGS]
    for source in KERNELS:
        jobs += [(source, flags) for name, flags in X86_FLAGS.items() if x86 or name == "portable"]
    return [(SOURCES / source, [*COMMON_FLAGS, *flags, *extra_flags]) for source, flags in jobs]


def link_flags(extra_flags: Sequence[str] = ()) -> list[str]:
    """Returns the flags of the last step, which makes the library."""
    return [*extra_flags, f"-L{Path(torch.__file__).parent / 'lib'}", "-ltorch_cpu"]
