"""Builds the source distribution, and from it a wheel with compiled kernels: python scripts/build_wheel.py OUTPUT_DIRECTORY

Needs torch, numpy, setuptools, git, a C++ compiler ($CXX, or g++ or clang++). The same commit, compiler, torch and setuptools
give the same bytes, in whatever directory: times are those of $SOURCE_DATE_EPOCH (of the commit if it is not set). The wheel is
tagged for this machine (linux_x86_64); `make wheel` lets auditwheel check it and give it the oldest tag it may carry.
"""

import argparse
import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from entformer.kernels import build, sources  # noqa: E402  (of this repository, whatever is installed)


def main() -> int:
    """Builds both; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("output", type=Path)
    output = parser.parse_args().output.resolve()
    with tempfile.TemporaryDirectory(prefix="entformer-wheel-") as scratch:
        try:
            library, note = compile_kernels(Path(scratch))
        except build.BuildError as err:
            print(f"build_wheel: {err}", file=sys.stderr)
            return 1
        sdist = build_sdist(output)
        print(sdist)
        print(build_wheel(sdist, library, note, output))
    return 0


def compile_kernels(scratch: Path) -> tuple[Path, dict[str, object]]:
    """Compiles the library. Returns it and a note on how it was made."""
    import torch

    cxx = build.compiler()
    if cxx is None:
        raise build.BuildError("no C++ compiler was found; install g++ or clang++, or set CXX.")
    flags: object = {"all": sources.COMMON_FLAGS, **sources.X86_FLAGS}
    note: dict[str, object] = {"compiler": build.compiler_version(cxx), "flags": flags, "torch": torch.__version__}
    return build.compile_library(cxx, sources.compile_jobs(["-Werror"]), sources.link_flags(), scratch), note


def build_sdist(output: Path) -> Path:
    """Builds the source distribution from the tracked files as they are in the work tree."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct").strip()
    with tempfile.TemporaryDirectory(prefix="entformer-sdist-") as scratch:
        tree = Path(scratch) / "tree"
        for name in _git("ls-files", "-z").split("\0"):
            if name and (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, tree / name)
                (tree / name).chmod(0o755 if os.access(ROOT / name, os.X_OK) else 0o644)
        made = Path(scratch) / _run_backend("build_sdist", tree, Path(scratch))
        output.mkdir(parents=True, exist_ok=True)
        with_fixed_times(made, output / made.name, int(epoch))
        return output / made.name


def with_fixed_times(archive: Path, target: Path, epoch: int) -> None:
    """Copies a .tar.gz; members come in the order of their names, belong to nobody and have the given time."""
    packed = io.BytesIO()
    with tarfile.open(archive) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with target.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=epoch) as compressed:
        compressed.write(packed.getvalue())


def build_wheel(sdist: Path, library: Path, note: dict[str, object], output: Path) -> Path:
    """Builds a wheel from a source distribution, with the library, which was compiled from the same sources, inside."""
    with tempfile.TemporaryDirectory(prefix="entformer-wheel-") as scratch, tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
        (tree,) = Path(scratch).iterdir()
        prebuilt = tree / "src" / "entformer" / "prebuilt"
        prebuilt.mkdir()
        name = f"kernels_{sources.sources_hash()}.so"
        shutil.copyfile(library, prebuilt / name)
        (prebuilt / name).chmod(0o755)
        (prebuilt / "kernels.json").write_text(json.dumps(note, indent=1) + "\n", encoding="utf-8")
        # Members of the wheel have the time of this variable; that of the sdist's, which are all the same, by default.
        epoch = os.environ.get("SOURCE_DATE_EPOCH") or str(int((tree / "PKG-INFO").stat().st_mtime))
        return output / _run_backend("build_wheel", tree, output, SOURCE_DATE_EPOCH=epoch)


def _run_backend(hook: str, tree: Path, output: Path, **environment: str) -> str:
    """Calls setuptools in a process of its own; returns the name of the file it has made."""
    code = f"import sys; from setuptools import build_meta; print(build_meta.{hook}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(output)],
        cwd=tree,
        env={**os.environ, **environment},
        umask=0o022,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
