"""Resolves `training.precision` for a device: "float32" or "bfloat16".

Weights, their gradients and the optimizer's state are always float32; bfloat16 means autocast.
"""

from typing import Literal

import torch

Precision = Literal["float32", "bfloat16"]


def precision_here(requested: Literal["auto"] | Precision, device: torch.device) -> Precision:
    """Returns the requested precision; for "auto", bfloat16 where the processor multiplies it natively, else float32."""
    if requested != "auto":
        return requested
    if device.type == "cuda":
        return "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    # torch has no public query for this; float32 is always correct.
    queries = (getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"))
    return "bfloat16" if any(query is not None and query() for query in queries) else "float32"
