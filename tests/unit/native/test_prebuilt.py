"""The library that a wheel contains: loaded without a compiler and a cache, or refused with the reason."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from entformer.kernels import native, sources

from .conftest import calls


@pytest.fixture
def prebuilt(cache: Path, library: Path) -> Path:
    """The library of a wheel with the sources of this package."""
    native.PREBUILT.mkdir()
    return Path(shutil.copyfile(library, native.PREBUILT / f"kernels_{sources.sources_hash()}.so"))


def test_the_library_of_a_wheel_needs_neither_compiler_nor_cache(
    prebuilt: Path, cache: Path, compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(cache))
    monkeypatch.setenv("CXX", "")
    assert native.load() is None
    assert native.library() == (prebuilt, "wheel", "compiled from the sources of this package")
    assert calls(compiler, "compiled") == 0
    assert not cache.exists()


def refuse_flags(prebuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENTFORMER_CXXFLAGS", "-g")


def change_sources(prebuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prebuilt.rename(prebuilt.with_name("kernels_00000000000000000000.so"))


def damage(prebuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prebuilt.write_bytes(b"not a library")


def remove(prebuilt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(prebuilt.parent)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (refuse_flags, "ENTFORMER_CXXFLAGS asks for other flags"),
        (change_sources, "the sources of this package are not those"),
        (damage, r"the library of the wheel cannot be loaded \(.*kernels_"),
        (remove, "this package was installed from source"),
    ],
)
def test_otherwise_the_kernels_are_compiled_and_the_reason_is_kept(
    change: Callable[[Path, pytest.MonkeyPatch], None],
    reason: str,
    prebuilt: Path,
    cache: Path,
    compiler: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    change(prebuilt, monkeypatch)
    assert native.load() is None
    found = native.library()
    assert found is not None
    assert (found.path.parent, found.origin) == (cache, "cache")
    assert re.match(f"compiled on this machine: {reason}", found.reason)
    assert calls(compiler, "linked") == 1


def test_the_hash_depends_on_sources_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = {sources.sources_hash()}
    with monkeypatch.context() as patch:
        patch.setattr(sources, "COMMON_FLAGS", [*sources.COMMON_FLAGS, "-g"])
        hashes.add(sources.sources_hash())
    monkeypatch.setattr(sources, "SOURCES", Path(shutil.copytree(sources.SOURCES, tmp_path / "csrc")))
    assert sources.sources_hash() in hashes  # where they are does not matter
    with (tmp_path / "csrc" / sources.HEADERS[-1]).open("a") as file:
        file.write("// edited\n")
    hashes.add(sources.sources_hash())
    assert len(hashes) == 3


def test_names_of_files_are_shortened_behind_links_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gcc resolves links in the names of system headers, so the prefix that it removes must be the resolved one."""
    (tmp_path / "real" / "include").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setattr(sources.torch, "__file__", str(tmp_path / "link" / "__init__.py"))
    flags = next(flags for path, flags in sources.compile_jobs() if path.name == "bindings.cpp")
    real = (tmp_path / "real" / "include").resolve()
    assert {f"-ffile-prefix-map={real}/=", f"-isystem{real}"} <= set(flags)
