"""The operators of attention by Triton kernels: buffers, arguments and the order of the passes.

    forward    scout -> lists of live blocks -> solve -> output, which notes the blocks with support in the reserve
    backward   lists of blocks with support -> back_q -> back_kv

Nothing here reads a value of a tensor: the host never waits for the device. `attention_support` is the one exception, since the
size of its result is such a value.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
import triton
from torch import Tensor

from entformer.kernels.attention.triton import configs
from entformer.kernels.attention.triton.back_kv import back_kv
from entformer.kernels.attention.triton.back_q import back_q
from entformer.kernels.attention.triton.lists import list_blocks
from entformer.kernels.attention.triton.output import output
from entformer.kernels.attention.triton.scores import Packed, Pairs, PerHead, PerKey, Problem, Rows
from entformer.kernels.attention.triton.scout import scout
from entformer.kernels.attention.triton.solve import solve
from entformer.kernels.attention.triton.support import support
from entformer.kernels.entmax.triton import maths

INTERPRETED = not isinstance(scout, triton.runtime.JITFunction)
MODES = {
    "entmax": maths.GENERAL.value,
    "entmax15": maths.ENTMAX15.value,
    "sparsemax": maths.SPARSEMAX.value,
    "softmax": maths.SOFTMAX.value,
    "relu": maths.RELU.value,
}

_counts: list[Tensor] | None = None


@contextlib.contextmanager
def counting() -> Iterator[list[Tensor]]:
    """Collects a tensor (B, H, query blocks, 4) per forward pass: key blocks of the scout, steps of the solver, live key blocks,
    key blocks with support."""
    global _counts
    _counts = found = []
    try:
        yield found
    finally:
        _counts = None


class Call:
    """The arguments of one call of the operators, as the kernels take them."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        alpha: Tensor,
        attn_mask: Tensor | None,
        key_mask: Tensor | None,
        alibi_slopes: Tensor | None,
        normalizer: str,
        scale: float,
        is_causal: bool,
        causal_offset: int,
        *,
        dropout_p: float = 0.0,
        dropout_seed: Tensor | None = None,
        bias: Tensor | None = None,
        window_left: int | None = None,
        window_right: int | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
    ) -> None:
        self.batch, self.heads, self.queries, self.size = query.shape
        self.key_heads, self.keys, self.value_size = key.shape[1], key.shape[2], value.shape[3]
        self.device = query.device
        self.mode = MODES[normalizer]
        self.config = configs.config(max(self.size, self.value_size), query.dtype)
        self.query_blocks = triton.cdiv(self.queries, self.config.queries)
        self.key_blocks = triton.cdiv(self.keys, self.config.keys)
        right = min(window_right or 0, 0) if is_causal else window_right
        if is_causal and window_right is not None:
            right = min(window_right, 0)
        hazard = _largest(query) * _largest(key) * (self.size * abs(scale)) + _largest(value) + alpha.sum().float()
        for extra in (bias, sinks):
            if extra is not None:
                hazard = hazard + extra.detach().amax().float()
        packed = None
        if cu_seqlens_q is not None and cu_seqlens_k is not None:
            packed = _packed(cu_seqlens_q, cu_seqlens_k, self.queries)
        drops = dropout_p > 0.0 and dropout_seed is not None
        seeds = dropout_seed.reshape(-1) if drops and dropout_seed is not None else None
        rows = self.batch * self.heads * self.queries
        self.problem = Problem(
            query=rows_of(query),
            key=rows_of(key),
            value=rows_of(value),
            alpha=_per_head(alpha),
            attn_mask=None if attn_mask is None else _pairs(attn_mask.view(torch.uint8)),
            key_mask=None if key_mask is None else PerKey(key_mask.view(torch.uint8), *key_mask.stride()),
            bias=None if bias is None else _pairs(bias),
            slopes=None if alibi_slopes is None else _per_head(alibi_slopes),
            sinks=None if sinks is None else _per_head(sinks),
            packed=packed,
            hazard=hazard,
            heads=self.heads,
            group=self.heads // max(self.key_heads, 1),
            queries=self.queries,
            keys=self.keys,
            scale=float(scale),
            offset=causal_offset,
            left=window_left,
            right=right,
            softcap=softcap,
            seeds=seeds,
            rows_per_seed=max(1, rows // (1 if seeds is None else seeds.numel())),
            drop=float(dropout_p),
        )

    @property
    def fixed(self) -> dict[str, Any]:
        """The constants of every kernel."""
        return {
            "MODE": self.mode,
            "BM": self.config.queries,
            "BN": self.config.keys,
            "D": self.size,
            "DP": configs.padded(self.size),
            "UP": INTERPRETED and self.problem.query.ptr.dtype == torch.bfloat16,
            "num_warps": self.config.warps,
            "num_stages": self.config.stages,
        }

    @property
    def both(self) -> dict[str, Any]:
        """The constants of kernels that read values too."""
        return self.fixed | {"E": self.value_size, "EP": configs.padded(self.value_size)}

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """An uninitialized tensor (B, H, *shape)."""
        return torch.empty((self.batch, self.heads, *shape), dtype=dtype, device=self.device)

    def map(self) -> Tensor:
        """A byte per pair of blocks, zero."""
        shape = (self.batch, self.heads, self.query_blocks, self.key_blocks)
        return torch.zeros(shape, dtype=torch.uint8, device=self.device)

    def lists(self, blocks: Tensor, *, by_key: bool = False) -> tuple[Tensor, Tensor]:
        """The nonzero entries of each row of a map, or of each column, and their numbers."""
        rows, columns = self.query_blocks, self.key_blocks
        strides = (columns, 1)
        if by_key:
            rows, columns, strides = columns, rows, (1, columns)
        found = self.empty(rows, columns, dtype=torch.int16 if columns < 2**15 else torch.int32)
        counts = self.empty(rows, dtype=torch.int32)
        chunk = min(1024, triton.next_power_of_2(columns))
        list_blocks[(rows, self.batch * self.heads)](blocks, found, counts, rows, columns, *strides, CHUNK=chunk, num_warps=1)
        return found, counts


def forward(call: Call, return_entropy: bool) -> tuple[Tensor, ...]:
    """Output, row_max, threshold, support_size, entropy and reserve."""
    out = call.empty(call.queries, call.value_size, dtype=call.problem.query.ptr.dtype)
    row_max, lower = call.empty(call.queries), call.empty(call.queries)
    threshold = call.empty(call.queries, dtype=torch.float64)
    size = call.empty(call.queries, dtype=torch.int32)
    entropy = call.empty(call.queries) if return_entropy else row_max.new_empty(0)
    live, held = call.map(), call.map()
    if out.numel() == 0 and row_max.numel() == 0:
        return out, row_max, threshold, size, entropy, held
    counters = None
    if _counts is not None:
        counters = torch.zeros((*live.shape[:3], 4), dtype=torch.int32, device=call.device)
        _counts.append(counters)
    grid = (call.query_blocks, call.batch * call.heads)
    with torch.cuda.device_of(out):
        scout[grid](call.problem, row_max, lower, live, counters, call.key_blocks, **call.fixed)
        lists, counts = call.lists(live)
        if call.mode not in (MODES["softmax"], MODES["relu"]):
            solve[grid](call.problem, row_max, lower, lists, counts, counters, call.key_blocks, **call.fixed)
        written = (rows_of(out), threshold, size, entropy if return_entropy else None, held)
        output[grid](call.problem, row_max, lower, lists, counts, *written, counters, call.key_blocks, **call.both)
    return out, row_max, threshold, size, entropy, held


def backward(
    call: Call,
    grad_output: Tensor,
    row_max: Tensor,
    threshold: Tensor,
    reserve: Tensor,
    *,
    needs_alpha_grad: bool,
    needs_slopes_grad: bool = False,
    needs_bias_grad: bool = False,
) -> dict[str, Tensor]:
    """The gradients by name: query, key, value and, where they are needed, alpha, slopes, sinks (all (B, H)) and bias."""
    p = call.problem
    dtype = p.query.ptr.dtype
    grad_query = call.empty(call.queries, call.size, dtype=dtype)
    grad_key, grad_value = (
        torch.empty((call.batch, call.key_heads, call.keys, size), dtype=dtype, device=call.device)
        for size in (call.size, call.value_size)
    )
    delta = call.empty(call.queries)
    needed = {"alpha": needs_alpha_grad, "sinks": p.sinks is not None, "slopes": needs_slopes_grad}
    partial = {name: call.empty(call.query_blocks) if wanted else None for name, wanted in needed.items()}
    grad_bias = torch.zeros((call.batch, call.heads, call.queries, call.keys), device=call.device) if needs_bias_grad else None
    rows = rows_of(grad_output.to(dtype))
    with torch.cuda.device_of(grad_output):
        if grad_query.numel() > 0 or delta.numel() > 0:
            found = (rows_of(grad_query), delta, *partial.values(), None if grad_bias is None else _pairs(grad_bias))
            grid = (call.query_blocks, call.batch * call.heads)
            back_q[grid](p, rows, row_max, threshold, *call.lists(reserve), *found, call.key_blocks, **call.both)
        if grad_key.numel() > 0 or grad_value.numel() > 0:
            lists = call.lists(reserve, by_key=True)
            found = (rows_of(grad_key), rows_of(grad_value))
            grid = (call.key_blocks, call.batch * call.key_heads)
            back_kv[grid](p, rows, row_max, threshold, delta, *lists, *found, call.query_blocks, **call.both)
    grads = {"query": grad_query, "key": grad_key, "value": grad_value}
    grads |= {name: sums.double().sum(-1) for name, sums in partial.items() if sums is not None}
    return grads if grad_bias is None else grads | {"bias": grad_bias}


def attention_support(call: Call, row_max: Tensor, threshold: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and weights of the support, in the order of rows. Waits for the device: it must know how many there are."""
    count = int(begins[-1])
    indices = torch.zeros(count, dtype=torch.int32, device=call.device)
    values = torch.zeros(count, dtype=torch.float32, device=call.device)
    if count > 0:
        with torch.cuda.device_of(row_max):
            grid = (call.query_blocks, call.batch * call.heads)
            support[grid](call.problem, row_max, threshold, begins, indices, values, **call.fixed)
    return indices, values


def rows_of(tensor: Tensor) -> Rows:
    """A tensor (B, H, L, D) for the kernels, which read adjacent elements of D."""
    tensor = tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()
    return Rows(tensor, *tensor.stride()[:3])


def _pairs(tensor: Tensor) -> Pairs:
    return Pairs(tensor, *tensor.stride())


def _per_head(tensor: Tensor) -> PerHead:
    return PerHead(tensor, *tensor.stride())


def _largest(tensor: Tensor) -> Tensor:
    """The largest magnitude, NaN if there is one; on the device."""
    if tensor.numel() == 0:
        return torch.zeros((), device=tensor.device)
    return torch.linalg.vector_norm(tensor.detach(), math.inf).float()


def _packed(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, queries: int) -> Packed:
    """Of each query, where the keys of its sequence begin and end, and how far its position is from that of a key."""
    sequence = torch.searchsorted(cu_seqlens_q[1:].contiguous(), torch.arange(queries, device=cu_seqlens_q.device), right=True)
    begin, end = cu_seqlens_k[sequence], cu_seqlens_k[sequence + 1]
    return Packed(begin.int(), end.int(), (begin - cu_seqlens_q[sequence]).int())
