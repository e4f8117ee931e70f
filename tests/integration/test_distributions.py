"""The source distribution and the wheel with compiled kernels: what they contain, their tags, their times."""

import importlib.util
import io
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

import entformer
from entformer.kernels import native
from entformer.kernels.sources import sources_hash

ROOT = Path(__file__).resolve().parents[2]
EPOCH = 1_700_000_000


@pytest.fixture(scope="module")
def script() -> ModuleType:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("distributions are built from a git work tree")
    spec = importlib.util.spec_from_file_location("build_wheel", ROOT / "scripts" / "build_wheel.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def distributions(script: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Both, the wheel with the library that this process runs."""
    if native.load() is not None:
        pytest.skip("there is no compiled library")
    output = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOURCE_DATE_EPOCH", str(EPOCH))
        sdist = script.build_sdist(output)
        return sdist, script.build_wheel(sdist, native.library_path(), {"compiler": "one"}, output)


def tracked(*paths: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return {name for name in listed.splitlines() if (ROOT / name).exists()}


@pytest.mark.slow
def test_the_wheel_has_the_library_and_all_of_the_package(distributions: tuple[Path, Path]) -> None:
    _, wheel = distributions
    assert wheel.name.startswith(f"entformer-{entformer.__version__}-py3-none-linux_")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        package = {name for name in names if ".dist-info/" not in name}
        library = f"entformer/prebuilt/kernels_{sources_hash()}.so"
        expected = {name.removeprefix("src/") for name in tracked("src/entformer")}
        assert package - expected == {library, "entformer/prebuilt/kernels.json"}
        assert expected <= package
        assert archive.read(library) == (native.library_path() or Path()).read_bytes()
        about = archive.read(next(name for name in names if name.endswith(".dist-info/WHEEL"))).decode()
        assert "Root-Is-Purelib: false" in about
        assert {info.date_time for info in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}


@pytest.mark.slow
def test_the_source_distribution_has_tests_and_documents_and_no_library(distributions: tuple[Path, Path]) -> None:
    sdist, _ = distributions
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
    names = {member.name.partition("/")[2] for member in members if member.isfile()}
    assert (
        tracked("src", "tests", "docs", "scripts", "examples", "benchmarks", "experiments", ":(glob)*.md", "Makefile") <= names
    )
    assert [name for name in names if name.endswith((".so", ".pyc"))] == []
    assert {(member.mtime, member.uid, member.gid, member.uname) for member in members} == {(EPOCH, 0, 0, "")}


def test_an_archive_does_not_depend_on_when_and_by_whom_it_was_made(script: ModuleType, tmp_path: Path) -> None:
    made = []
    for number, order in enumerate(("ab", "ba")):
        with tarfile.open(tmp_path / f"{number}.tar.gz", "w:gz") as archive:
            for name in order:
                member = tarfile.TarInfo(name)
                member.size, member.mtime, member.uid, member.mode = 1, 1000.5 + number, number, (0o664, 0o600)[number]
                archive.addfile(member, io.BytesIO(name.encode()))
        script.with_fixed_times(tmp_path / f"{number}.tar.gz", tmp_path / f"{number}.fixed", EPOCH)
        made.append((tmp_path / f"{number}.fixed").read_bytes())
    assert made[0] == made[1]
    with tarfile.open(fileobj=io.BytesIO(made[0])) as archive:
        assert [(member.name, archive.extractfile(member).read()) for member in archive] == [("a", b"a"), ("b", b"b")]  # type: ignore[union-attr]
