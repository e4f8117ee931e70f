"""Windows, soft-caps, sinks, packed sequences and sigmoid biases that make no sense are refused with one sentence."""

import math
from typing import Any

import pytest
import torch

from entformer.errors import ArgumentError
from entformer.kernels.attention.api import attention

INF = math.inf

CU = torch.tensor([0, 4, 9], dtype=torch.int32)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"window": 3}, "window must be a pair"),
    ({"window": (-1, -1)}, "at least 0 or None"),
    ({"window": (1.5, 0)}, "window must be a pair"),
    ({"window": (True, 0)}, "window must be a pair"),
    ({"softcap": 0.0}, "softcap=0.0 must be a positive number"),
    ({"softcap": math.nan}, "must be a positive number"),
    ({"softcap": "30"}, "softcap must be a number"),
    ({"sinks": torch.zeros(2), "normalizer": "rela"}, "sinks need weights that sum to one"),
    ({"sinks": torch.zeros(2), "normalizer": "sigmoid"}, "sinks need weights that sum to one"),
    ({"sinks": torch.zeros(3)}, "sinks must have shape"),
    ({"sinks": torch.zeros(2, dtype=torch.int32)}, "sinks must be a floating-point tensor"),
    ({"sinks": 0.0}, "sinks must be a tensor"),
    ({"sigmoid_bias": -1.0}, "sigmoid_bias is for normalizer='sigmoid' alone"),
    ({"sigmoid_bias": torch.zeros(()), "normalizer": "sigmoid"}, "pass a learned one as attn_mask"),
    ({"sigmoid_bias": INF, "normalizer": "sigmoid"}, "must be finite"),
    ({"cu_seqlens_q": CU}, "cu_seqlens_k is missing"),
    ({"cu_seqlens_k": CU}, "cu_seqlens_q is missing"),
    ({"cu_seqlens_q": CU, "cu_seqlens_k": CU[:2]}, "must begin with 0"),
    ({"cu_seqlens_q": CU, "cu_seqlens_k": torch.tensor([0, 9])}, "equally many"),
    ({"cu_seqlens_q": CU, "cu_seqlens_k": CU.float()}, "int32 tensor"),
    ({"cu_seqlens_q": CU + 1, "cu_seqlens_k": CU}, "must begin with 0"),
    ({"cu_seqlens_q": torch.tensor([0, 5, 4, 9]), "cu_seqlens_k": torch.tensor([0, 4, 4, 9])}, "never decrease"),
]


@pytest.mark.parametrize(("how", "message"), REFUSED)
def test_what_makes_no_sense_is_refused(how: dict[str, Any], message: str) -> None:
    q = k = v = torch.ones(1, 2, 9, 8)
    with pytest.raises(ArgumentError, match=message):
        attention(q, k, v, **how)


def test_packed_sequences_need_a_batch_of_one() -> None:
    q = k = v = torch.ones(2, 2, 9, 8)
    with pytest.raises(ArgumentError, match="in one batch entry"):
        attention(q, k, v, cu_seqlens_q=CU, cu_seqlens_k=CU)
