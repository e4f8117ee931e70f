"""What the compiled library asks of the system and of torch, and the compilers that build it."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from entformer.kernels import native

from .conftest import start

# The newest version of each library that the tag manylinux_2_28 allows.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
STABLE_HEADERS = ("stable/c/shim.h", "inductor/aoti_torch/c/shim.h")

COMPARE = """
import torch, entformer as ef
from entformer.kernels import native
x = torch.randn(9, 77, generator=torch.Generator().manual_seed(0))
q = x[:8, :64].reshape(1, 2, 4, 64)
for isa in ("portable", "avx2", "avx512"):
    if native.set_isa(isa):
        assert native.isa() == isa
        for dtype, tolerance in ((torch.float32, 1e-6), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)):  # of weights below 1
            y, r = x.to(dtype), q.to(dtype)
            expected = ef.entmax(y.double(), 1.25, impl="reference")
            assert (ef.entmax(y, 1.25, impl="cpu") - expected).abs().max() <= tolerance
            expected = ef.attention(r.double(), r.double(), r.double().sigmoid(), alpha=1.25, impl="reference")
            assert (ef.attention(r, r, r.sigmoid(), alpha=1.25, impl="cpu") - expected).abs().max() <= tolerance * 4
print(native.library_path())
"""


@pytest.fixture
def undefined(kernels: None) -> list[tuple[str, str]]:
    """Names that the library takes from others, each with its version ("GLIBC_2.14", or nothing)."""
    if shutil.which("nm") is None:
        pytest.skip("nm, of binutils, is not installed")
    listed = subprocess.run(
        ["nm", "-D", "--undefined-only", str(native.library_path())], capture_output=True, text=True, check=True
    ).stdout
    names = [line.split()[-1] for line in listed.splitlines() if " U " in line]  # not the weak ones, which may be missing
    return [(name.partition("@")[0], name.rpartition("@")[2] if "@" in name else "") for name in names]


def test_torch_is_used_by_its_stable_abi_alone(undefined: list[tuple[str, str]]) -> None:
    include = Path(torch.__file__).parent / "include" / "torch" / "csrc"
    declared = "".join((include / header).read_text() for header in STABLE_HEADERS)
    of_torch = [name for name, version in undefined if not version]
    assert "aoti_torch_library_init_impl" in of_torch
    assert [name for name in of_torch if not re.search(rf"\b{name}\b", declared) and not from_macro(name, declared)] == []


def from_macro(name: str, declared: str) -> bool:
    """Whether a name is one of a family, as aoti_torch_dtype_float32 is, that a macro of the headers declares."""
    return re.fullmatch(r"aoti_torch_dtype_\w+", name) is not None and "aoti_torch_dtype_##" in declared


def test_the_system_may_be_as_old_as_the_tag_of_the_wheel_says(undefined: list[tuple[str, str]]) -> None:
    content = (native.library_path() or Path()).read_bytes()
    compiled_by = [int(major) for major in re.findall(rb"GCC: \([^)]*\) (\d+)\.", content)]
    newest = dict(NEWEST)
    if max(compiled_by, default=0) > 12:  # its C++ library has further functions; where wheels are built, it links them in
        del newest["GLIBCXX"], newest["CXXABI"]
    for name, version in undefined:
        library, _, number = version.partition("_")
        if library in newest:
            assert tuple(map(int, number.split("."))) <= newest[library], f"{name} of {version}"
    assert {version.partition("_")[0] for _, version in undefined} - {"", *NEWEST} == set()


def test_the_library_names_no_directory_of_the_machine(undefined: list[tuple[str, str]]) -> None:
    content = (native.library_path() or Path()).read_bytes()
    for place in (native.PREBUILT.parent, Path(torch.__file__).parent, Path.home()):
        assert str(place).encode() not in content


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_compilers_that_build_the_kernels_without_a_warning(
    compiler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    monkeypatch.setenv("CXX", compiler)
    monkeypatch.setenv("ENTFORMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ENTFORMER_CXXFLAGS", "-O0 -Werror")  # scripts/build_wheel.py has -Werror at full optimization
    out, err = start("-c", COMPARE).communicate()
    assert out.startswith(str(tmp_path / "cache")), err
