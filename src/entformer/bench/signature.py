"""What a number was measured with. Out: a `Signature` that travels with every result, so that no figure stands alone."""

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from entformer import __version__
from entformer.kernels import native


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The versions and the machine behind a measurement."""

    entformer: str
    torch: str
    entmax: str | None
    """Version of the peer package, None when it is not installed."""
    python: str
    cpu: str
    implementation: str
    """"cpu (avx512)" and the like, or "reference" with the reason."""
    threads: int

    def __str__(self) -> str:
        peer = f"entmax {self.entmax}" if self.entmax else "entmax not installed"
        return (
            f"entformer {self.entformer}, {self.implementation} | torch {self.torch} | {peer} | "
            f"Python {self.python} | {self.cpu}, {self.threads} thread{'s' if self.threads != 1 else ''}"
        )


def signature() -> Signature:
    """The signature of this process, as it is now."""
    why_not = native.load()
    return Signature(
        entformer=__version__,
        torch=torch.__version__,
        entmax=installed_version("entmax"),
        python=platform.python_version(),
        cpu=cpu_name(),
        implementation=f"cpu ({native.isa()})" if why_not is None else f"reference, because {why_not.rstrip('.')}",
        threads=torch.get_num_threads(),
    )


def installed_version(package: str) -> str | None:
    """The version of an installed distribution, without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu_name() -> str:
    """The processor as its maker calls it, where the system tells."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
