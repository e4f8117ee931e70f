"""The torch operators behind training: schemas and shapes for the tracer. Their callers own the derivatives.

cross_entropy_(scores (rows, V), target (rows,), smoothing, differentiate) -> sums (rows, 3) float32:
    (smoothed loss, -ln p_target, 1 if the target has the best score); scores become their gradient if `differentiate`
dropout(x, residual or None, seed (), p, narrow) -> residual + mask(seed) x / (1 - p), bfloat16 if narrow, else float32
"""

import torch
from torch import Tensor

_library = torch.library.Library("entformer", "FRAGMENT")
_library.define("cross_entropy_(Tensor(a!) scores, Tensor target, float smoothing, bool differentiate) -> Tensor")
_library.define(
    "dropout(Tensor x, Tensor? residual, Tensor seed, float p, bool narrow) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)

cross_entropy_ = torch.ops.entformer.cross_entropy_.default
dropout = torch.ops.entformer.dropout.default


def _sums_shape(scores: Tensor, target: Tensor, smoothing: float, differentiate: bool) -> Tensor:
    return scores.new_empty((scores.shape[0], 3), dtype=torch.float32)


def _dropout_shape(x: Tensor, residual: Tensor | None, seed: Tensor, p: float, narrow: bool) -> Tensor:
    return x.new_empty(x.shape, dtype=torch.bfloat16 if narrow else torch.float32)


torch.library.register_fake("entformer::cross_entropy_", _sums_shape, lib=_library)
torch.library.register_fake("entformer::dropout", _dropout_shape, lib=_library)
