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
import triton.language as tl
from torch import Tensor

from entformer.kernels.attention.arguments import Call, new_rows
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
from entformer.kernels.entmax.triton.launches import launch

INTERPRETED = not isinstance(scout, triton.runtime.JITFunction)
MODES = {
    "entmax": maths.GENERAL.value,
    "entmax15": maths.ENTMAX15.value,
    "sparsemax": maths.SPARSEMAX.value,
    "softmax": maths.SOFTMAX.value,
    "relu": maths.RELU.value,
    "sigmoid": maths.SIGMOID.value,
}

_counts: list[Tensor] | None = None


@contextlib.contextmanager
def counting() -> Iterator[list[Tensor]]:
    """Collects a tensor (B, H, query blocks, 4) per forward pass.

    Key blocks of the scout, steps of the solver, live key blocks, key blocks with support.
    """
    global _counts
    found: list[Tensor] = []
    _counts = found
    try:
        yield found
    finally:
        _counts = None


class Plan:
    """One call of the operators as the kernels take it."""

    def __init__(self, call: Call) -> None:
        query, key, value, more = call.query, call.key, call.value, call.features
        self.call = call
        self.batch, self.heads, self.queries, self.size = query.shape
        self.key_heads, self.keys, self.value_size = key.shape[1], key.shape[2], value.shape[3]
        self.device = query.device
        self.mode = MODES[call.normalizer]
        self.config = configs.config(max(self.size, self.value_size), query.dtype)
        self.query_blocks = triton.cdiv(self.queries, self.config.queries)
        self.key_blocks = triton.cdiv(self.keys, self.config.keys)
        right = more.window_right
        if call.is_causal:
            right = 0 if right is None else min(right, 0)
        hazard = _largest(query) * _largest(key) * (self.size * abs(call.scale)) + _largest(value) + call.alpha.sum().float()
        for added in (more.bias, more.sinks):  # -inf excludes, and is none
            if added is not None and added.numel() > 0:
                hazard = hazard + added.detach().amax().float()
        packed = None
        if more.cu_seqlens_q is not None and more.cu_seqlens_k is not None:
            packed = _packed(more.cu_seqlens_q, more.cu_seqlens_k, self.queries)
        seeds = call.dropout_seed.reshape(-1) if call.dropout_p > 0.0 else None
        pairs = (self.batch, self.heads, self.queries, self.keys)
        mask, key_mask, slopes = call.attn_mask, call.key_mask, call.alibi_slopes
        rows = self.batch * self.heads * self.queries
        self.problem = Problem(
            query=rows_of(query),
            key=rows_of(key),
            value=rows_of(value),
            alpha=_per_head(call.alpha),
            attn_mask=None if mask is None else _pairs(mask.view(torch.uint8)),
            key_mask=None if key_mask is None else PerKey(key_mask.view(torch.uint8), *key_mask.stride()),
            bias=None if more.bias is None else _pairs(more.bias.expand(pairs)),
            slopes=None if slopes is None else _per_head(slopes),
            sinks=None if more.sinks is None else _per_head(more.sinks),
            packed=packed,
            hazard=hazard,
            heads=self.heads,
            group=self.heads // max(self.key_heads, 1),
            queries=self.queries,
            keys=self.keys,
            scale=float(call.scale),
            offset=call.causal_offset,
            left=more.window_left,
            right=right,
            softcap=more.softcap,
            sigmoid_bias=more.sigmoid_bias,
            seeds=seeds,
            rows_per_seed=max(1, rows // (1 if seeds is None else seeds.numel())),
            drop=float(call.dropout_p),
            query_blocks=self.query_blocks,
            key_blocks=self.key_blocks,
            MODE=tl.constexpr(self.mode),
            BM=tl.constexpr(self.config.queries),
            BN=tl.constexpr(self.config.keys),
            D=tl.constexpr(self.size),
            DP=tl.constexpr(configs.padded(self.size)),
            E=tl.constexpr(self.value_size),
            EP=tl.constexpr(configs.padded(self.value_size)),
            UP=tl.constexpr(INTERPRETED and query.dtype == torch.bfloat16),
        )

    def run(self, kernel: Any, *arguments: Any) -> None:
        """Launches a kernel with one program per block of queries and head."""
        launch(kernel, self.query_blocks * self.batch * self.heads, self.problem, *arguments, options=self.options(kernel))

    def run_backward(self, kernel: Any, *arguments: Any, by_key: bool) -> None:
        """Launches a kernel with one program per block of queries and head, or of keys and their head; blocks in parts."""
        parts = configs.parts(self.mode, self.call.query.dtype)
        queries, keys = self.config.queries, self.config.keys
        size = {"BM": tl.constexpr(queries // parts)} if by_key else {"BN": tl.constexpr(keys // parts)}
        lines = self.batch * (self.key_blocks * self.key_heads if by_key else self.query_blocks * self.heads)
        launch(kernel, lines, self.problem._replace(**size), *arguments, options=self.options(kernel), PARTS=parts)

    def options(self, kernel: Any) -> dict[str, int]:
        """How the compiler is called; nothing of that in the interpreter."""
        if INTERPRETED:
            return {}
        backend = "hip" if torch.version.hip else "cuda"
        size = max(self.size, self.value_size)
        return configs.options(size, self.call.query.dtype, kernel.__name__, self.mode, backend)

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
        chunk = min(1024, triton.next_power_of_2(max(columns, 1)))
        sizes = (rows, columns, *strides)
        launch(
            list_blocks, rows * self.batch * self.heads, blocks, found, counts, *sizes, CHUNK=chunk, options={"num_warps": 1}
        )
        return found, counts


def forward(plan: Plan, return_entropy: bool) -> tuple[Tensor, ...]:
    """Output, row_max, threshold, support_size, entropy and reserve."""
    out = new_rows(plan.call.query, plan.value_size)
    row_max, lower = plan.empty(plan.queries), plan.empty(plan.queries)
    threshold = plan.empty(plan.queries, dtype=torch.float64)
    size = plan.empty(plan.queries, dtype=torch.int32)
    entropy = plan.empty(plan.queries) if return_entropy else row_max.new_empty(0)
    live, held = plan.map(), plan.map()
    if out.numel() == 0 and row_max.numel() == 0:
        return out, row_max, threshold, size, entropy, held
    counters = None
    if _counts is not None:
        counters = torch.zeros((*live.shape[:3], 4), dtype=torch.int32, device=plan.device)
        _counts.append(counters)
    with torch.cuda.device_of(out):
        plan.run(scout, row_max, lower, live, counters)
        lists, counts = plan.lists(live)
        if plan.mode < MODES["softmax"]:
            plan.run(solve, row_max, lower, lists, counts, counters)
        written = (rows_of(out), threshold, size, entropy if return_entropy else None, held)
        plan.run(output, row_max, lower, lists, counts, *written, counters)
    return out, row_max, threshold, size, entropy, held


def backward(
    plan: Plan,
    grad_output: Tensor,
    row_max: Tensor,
    threshold: Tensor,
    reserve: Tensor,
    needs_alpha_grad: bool,
    needs_bias_grad: bool = False,
    needs_sinks_grad: bool = False,
    needs_slopes_grad: bool = False,
) -> tuple[Tensor, ...]:
    """Gradients of query, key and value; of alpha (B, H), bias, sinks (B, H) and slopes (B, H), or (0,)."""
    dtype = plan.call.query.dtype
    grad_query, grad_key, grad_value = (new_rows(t, t.shape[3]) for t in plan.call[:3])
    delta = plan.empty(plan.queries)
    of_none = needs_alpha_grad and plan.mode >= MODES["relu"]  # which have no alpha
    needed = (needs_alpha_grad and not of_none, needs_sinks_grad, needs_slopes_grad)
    parts = [plan.empty(plan.query_blocks) if wanted else None for wanted in needed]
    pairs = (plan.batch, plan.heads, plan.queries, plan.keys)
    of_pairs = torch.zeros(pairs, device=plan.device) if needs_bias_grad else None
    rows = rows_of(grad_output.to(dtype))
    with torch.cuda.device_of(grad_output):
        if delta.numel() > 0:
            found = (rows_of(grad_query), delta, *parts, None if of_pairs is None else _pairs(of_pairs))
            plan.run_backward(back_q, rows, row_max, threshold, *plan.lists(reserve), *found, by_key=False)
        if grad_key.numel() > 0 or grad_value.numel() > 0:
            found = (rows_of(grad_key), rows_of(grad_value))
            lists = plan.lists(reserve, by_key=True)
            plan.run_backward(back_kv, rows, row_max, threshold, delta, *lists, *found, by_key=True)
    nothing = delta.new_empty(0)
    of_alpha, of_sinks, of_slopes = (nothing if sums is None else sums.double().sum(-1) for sums in parts)
    bias = plan.call.features.bias
    of_bias = nothing if of_pairs is None or bias is None else of_pairs.sum_to_size(bias.shape)
    if of_none:
        of_alpha = torch.zeros(plan.call.alpha.shape, dtype=torch.float64, device=plan.device)
    return grad_query, grad_key, grad_value, of_alpha.double(), of_bias, of_sinks.float(), of_slopes.float()


def attention_support(plan: Plan, row_max: Tensor, threshold: Tensor, begins: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and weights of the support, in the order of rows. Waits for the device: it must know how many there are."""
    count = int(begins[-1])
    indices = torch.zeros(count, dtype=torch.int32, device=plan.device)
    values = torch.zeros(count, dtype=torch.float32, device=plan.device)
    if count > 0:
        with torch.cuda.device_of(row_max):
            plan.run(support, row_max, threshold, begins, indices, values)
    return indices, values


def rows_of(tensor: Tensor) -> Rows:
    """A tensor (B, H, L, D) for the kernels, which read adjacent elements of D and count the rows of a block in 32 bits."""
    adjacent = tensor.stride(-1) == 1 or tensor.shape[-1] == 1
    tensor = tensor if adjacent and tensor.stride(-2) < 2**24 else tensor.contiguous()
    return Rows(tensor, *tensor.stride()[:3])


def _pairs(tensor: Tensor) -> Pairs:
    return Pairs(tensor, *tensor.stride())


def _per_head(tensor: Tensor) -> PerHead:
    return PerHead(tensor, *tensor.stride())


def _largest(tensor: Tensor) -> Tensor:
    """The largest magnitude, NaN if there is one; on the device."""
    if tensor.numel() == 0:
        return torch.zeros((), device=tensor.device)
    largest: Tensor = torch.linalg.vector_norm(tensor.detach(), math.inf)
    return largest.float()


def _packed(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, queries: int) -> Packed:
    """Of each query, where the keys of its sequence begin and end, and how far its position is from that of a key."""
    sequence = torch.searchsorted(cu_seqlens_q[1:].contiguous(), torch.arange(queries, device=cu_seqlens_q.device), right=True)
    begin, end = cu_seqlens_k[sequence], cu_seqlens_k[sequence + 1]
    return Packed(begin.int(), end.int(), (begin - cu_seqlens_q[sequence]).int())
