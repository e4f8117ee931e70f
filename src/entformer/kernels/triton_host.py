"""Whether Triton kernels can run here, and on which tensors; imports no triton.

They take CUDA tensors, which on AMD GPUs are those of ROCm. With TRITON_INTERPRET=1 in the environment before the process
starts, Triton interprets kernels on the CPU: then they take CPU tensors, and the C++ kernels are not loaded in that process,
since torch has one kernel per operator and device.
"""

import importlib.util
import os

import torch

MOST_HEAD_SIZE = 256  # larger blocks of keys and values do not fit into shared memory


def installed() -> bool:
    """Whether there is a triton package; it is not imported."""
    try:
        return importlib.util.find_spec("triton") is not None
    except (ImportError, ValueError):  # an import hook refuses it; a module of that name that is no package
        return False


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter in this process."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "yes", "y") and installed()


DEVICE = "cpu" if interpreted() else "cuda"  # of the tensors the kernels take


def unavailable() -> str | None:
    """Returns why the kernels cannot run on this machine, or None."""
    if not installed():
        return "Triton is not installed; GPU builds of torch bring it, or install it with `pip install triton`."
    if DEVICE == "cpu":
        return None
    if not torch.cuda.is_available():
        return "torch sees no GPU."
    if torch.version.hip is None and torch.cuda.get_device_capability() < (8, 0):
        return "Triton kernels need an NVIDIA GPU of compute capability 8.0 (Ampere) or newer."
    return None


def cpu_taken() -> str | None:
    """Returns why the C++ kernels must not be loaded, or None."""
    return "TRITON_INTERPRET is set, so Triton's interpreter runs the operators on CPU tensors." if DEVICE == "cpu" else None
