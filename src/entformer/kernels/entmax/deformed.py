"""The deformed logarithm and exponential of alpha-entmax, without cancellation as e = alpha - 1 -> 0.

ln_e(p) = (p^e - 1)/e,   exp_e(x) = [1 + e x]_+ ^ (1/e)        (e = 0: log and exp)
"""

import math

import torch
from torch import Tensor

SERIES_TERMS = 14  # of log1p(y)/y for |y| < 1/16: the rest is below 1e-17


def deformed_log(log_p: Tensor, e: Tensor) -> Tensor:
    """ln_e(p) = (p^e - 1)/e from log p; log p at e = 0 and no cancellation near it, for value and derivatives."""
    t = e * log_p
    near = t.abs() < 0.5
    t_near = torch.where(near, t, 0.0)
    series = torch.zeros_like(t)
    for k in range(16, 0, -1):  # expm1(t)/t = sum t^(k-1)/k!
        series = series * t_near + 1.0 / math.factorial(k)
    far = torch.expm1(torch.where(near, 1.0, t)) / torch.where(near, 1.0, e)
    return torch.where(near, log_p * series, far)


def log1p_over(x: Tensor, e: Tensor) -> Tensor:
    """log(1 + e x)/e; x at e = 0. The quotient cancels as e -> 0, so near e x = 0 its series is used, which does not divide."""
    y = e * x
    near = y.abs() < 1.0 / 16.0
    y_near = torch.where(near, y, 0.0)
    series = torch.zeros_like(y)
    for k in range(SERIES_TERMS, 0, -1):
        series = series * y_near + (-1.0) ** (k + 1) / k
    far = torch.log1p(torch.where(near, 1.0, y)) / torch.where(near, 1.0, e)
    return torch.where(near, x * series, far)
