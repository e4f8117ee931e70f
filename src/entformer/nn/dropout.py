"""Dropout of activations with cheaper random numbers on the CPU.

    y = x * keep / (1 - p),   keep ~ Bernoulli(1 - p),   x (...) -> y (...)

torch draws a double for every element, which takes a tenth of the training step of a small translation model
(`experiments/RESULTS.md`). Here one 64-bit integer decides four elements, 16 bits each.
"""

import torch
from torch import Tensor, nn

from entformer.kernels.checks import transform_active
from entformer.nn.execution_mode import traced_as_leaf

_STEPS = 2**16  # p is rounded to a multiple of 1 / _STEPS; the scale is that of the rounded p


class Dropout(nn.Dropout):
    """torch.nn.Dropout; in eager mode on the CPU with its own way to draw from torch's generator."""

    @traced_as_leaf
    def forward(self, input: Tensor) -> Tensor:
        dropped = round(self.p * _STEPS)
        plain = torch.compiler.is_compiling() or transform_active() or input.device.type != "cpu"
        if not self.training or plain or self.inplace or not 0 < dropped < _STEPS:
            return super().forward(input)
        bits = torch.empty(-(-input.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        keep = bits.view(torch.int16)[: input.numel()].view(input.shape) >= dropped - _STEPS // 2
        return input * keep.to(input.dtype).mul_(_STEPS / (_STEPS - dropped))
