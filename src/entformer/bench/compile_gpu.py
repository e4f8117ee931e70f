"""The compile manifest of the GPU kernels: every variant compiled to machine code, without a GPU, and what it occupies.

Registers, stack (spilled registers live there) and shared memory are read from the compiled binary; the theoretical occupancy
follows from them and the limits of the target. A variant over a limit, or a hot one that spills, fails.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from entformer.bench.gpu_variants import HOT, Variant, source
from entformer.errors import ImplUnavailable


class Target(NamedTuple):
    """What a multiprocessor (NVIDIA) or compute unit (AMD) has."""

    backend: str
    arch: int | str
    lanes: int  # of a warp
    warps: int  # per multiprocessor
    blocks: int
    registers: int  # per thread at most; a warp of AMD has 512 per lane to share
    shared: int  # bytes per multiprocessor
    shared_per_block: int


KIB = 1024
TARGETS = {
    "sm_80": Target("cuda", 80, 32, 64, 32, 255, 164 * KIB, 163 * KIB),
    "sm_90": Target("cuda", 90, 32, 64, 32, 255, 228 * KIB, 227 * KIB),
    "sm_100": Target("cuda", 100, 32, 64, 32, 255, 228 * KIB, 227 * KIB),
    "gfx942": Target("hip", "gfx942", 64, 32, 32, 512, 64 * KIB, 64 * KIB),
}
FEWEST_REGISTERS = 32  # a compiler that gave up leaves this many and spills the rest


class Resources(NamedTuple):
    """What one variant occupies on one target."""

    variant: Variant
    target: str
    registers: int
    spilled: int  # bytes of stack (NVIDIA), registers (AMD)
    shared: int
    occupancy: float
    failure: str | None


def occupancy(target: Target, warps: int, registers: int, shared: int) -> float:
    """The part of the warps a multiprocessor can hold that fit at once."""
    blocks = min(target.warps // warps, target.blocks)
    if target.backend == "hip":  # registers are given out per SIMD, of which there are four, in granules of 8
        per_simd = min(8, 512 // max(-(-registers // 8) * 8, 1))
        blocks = min(blocks, per_simd * 4 // warps, target.shared // shared if shared else blocks)
    else:
        of_warp = -(-32 * registers // 256) * 256
        blocks = min(blocks, 65536 // of_warp // 4 * 4 // warps, target.shared // (shared + KIB))
    return blocks * warps / target.warps


def manifest(variants: Iterable[Variant], targets: Iterable[str]) -> Iterator[Resources]:
    """Compiles each variant for each target.

    Raises:
        ImplUnavailable: where Triton is missing, or interprets kernels in this process.
    """
    from entformer.kernels import triton_host

    if not triton_host.installed():
        raise ImplUnavailable("the compile manifest needs Triton, which is not installed: pip install triton.")
    if triton_host.interpreted():
        raise ImplUnavailable("the compile manifest needs Triton's compiler; unset TRITON_INTERPRET.")
    targets = list(targets)
    for variant in variants:
        for name in targets:
            yield _compiled(variant, name)


def _compiled(variant: Variant, name: str) -> Resources:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    target = TARGETS[name]
    kernel, types, constants, attributes, options = source(variant, target.backend)
    tree = ASTSource(fn=kernel, signature=types, constexprs=constants, attrs=attributes)
    try:
        compiled = triton.compile(tree, target=GPUTarget(target.backend, target.arch, target.lanes), options=options)
    except RuntimeError as err:
        return Resources(variant, name, 0, 0, 0, 0.0, f"does not compile: {str(err).splitlines()[0]}")
    shared = int(compiled.metadata.shared)
    registers, spilled = _amd(compiled.asm["amdgcn"]) if target.backend == "hip" else _nvidia(compiled.asm["cubin"])
    fits = shared <= target.shared_per_block and registers <= target.registers
    share = occupancy(target, options["num_warps"], registers, shared) if fits else 0.0
    failure = None
    if shared > target.shared_per_block:
        failure = f"needs {shared} bytes of shared memory; {name} has {target.shared_per_block}"
    elif share == 0.0:
        failure = f"needs {registers} registers; not one block fits"
    elif spilled > 0 and registers <= FEWEST_REGISTERS:
        failure = "the compiler gave up on registers"
    elif spilled > 0 and variant in HOT:
        failure = f"spills {spilled} {'registers' if target.backend == 'hip' else 'bytes'}"
    return Resources(variant, name, registers, spilled, shared, share, failure)


def _nvidia(cubin: bytes) -> tuple[int, int]:
    """Registers per thread and bytes of stack, as the wheel's cuobjdump reads them from a binary."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        text = subprocess.run([str(tool), "-res-usage", str(path)], capture_output=True, text=True, check=True).stdout
    found = {name: int(number) for name, number in re.findall(r"(REG|STACK):(\d+)", text)}
    return found["REG"], found["STACK"]


def _amd(assembly: str) -> tuple[int, int]:
    """Vector registers per lane and how many of them were spilled."""
    found = {name: int(number) for name, number in re.findall(r"\.(vgpr_count|vgpr_spill_count):\s*(\d+)", assembly)}
    return found["vgpr_count"], found["vgpr_spill_count"]


def table(found: Iterable[Resources]) -> list[str]:
    """A markdown table, one line per variant: registers/spilled, shared KiB, occupancy for each target."""
    by_variant: dict[Variant, dict[str, Resources]] = {}
    for entry in found:
        by_variant.setdefault(entry.variant, {})[entry.target] = entry
    names = sorted({name for cells in by_variant.values() for name in cells}, key=list(TARGETS).index)
    lines = [f"| variant | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for variant, cells in by_variant.items():
        texts = [_cell(cells[name]) if name in cells else "" for name in names]
        lines.append(f"| {variant} | {' | '.join(texts)} |")
    return lines


def _cell(entry: Resources) -> str:
    text = f"{entry.registers}/{entry.spilled}, {entry.shared / KIB:.0f} KiB, {100 * entry.occupancy:.0f}%"
    return f"**{text}**" if entry.failure else text
