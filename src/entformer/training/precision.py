"""In which precision a model computes. In: `training.precision` and the device. Out: "float32" or "bfloat16".

Weights, their gradients and the optimizer's state are always float32; bfloat16 concerns the products inside (autocast).
"""

from typing import Literal

import torch

Here = Literal["float32", "bfloat16"]


def precision_here(wanted: Literal["auto"] | Here, device: torch.device) -> Here:
    """What is wanted; for "auto", bfloat16 where the processor multiplies it natively, else float32."""
    if wanted != "auto":
        return wanted
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    # torch has no public question for this yet; without an answer float32 is never wrong.
    asked = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return "bfloat16" if any(ask is not None and ask() for ask in asked) else "float32"
