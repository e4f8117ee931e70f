"""The contestants of `entformer bench attention`. In: a setting. Out: its tensors, and per contestant the work that is timed.

sdpa            torch.nn.functional.scaled_dot_product_attention: softmax, the baseline
1.5, 2, 1.01    entformer.attention with this alpha; 1.01 has hardly any zeros
learned         alpha is a parameter (heads,) that wants a gradient. All heads at 1.49: the density of 1.5, but none of
                its shortcuts, since no kernel knows 1.49
learned spread  the same with 1 + sigmoid(-1.5 ... 1.5) over the heads: 1.18 to 1.82, as training leaves them
rela, softmax   through the same door; rela's weights are max(score, 0), softmax is alpha = 1
... nape        any of ours where half the heads have ALiBi with slopes 1, 1/2, 1/3 ..., as in NAPE; SDPA has none of it
entmax package  softmax(q k^T) v written out, with the package's entmax15 for softmax; stores all scores
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from entformer.bench.attention_plan import Setting
from entformer.bench.peer import Normalizer, peer_functions
from entformer.errors import ArgumentError
from entformer.kernels.flash.api import Attention, attention
from entformer.nn.positions import nape_slopes

SDPA = "sdpa"
PEER = "entmax package"
QUICK_ONES = ("1.5", "learned", "2")
SLOW_ONES = ("learned spread", "rela", "1.01", "softmax")
OURS = ("1.5", "learned", "learned spread", "2", "rela", "1.01", "softmax")
CONTESTANTS = (*OURS, PEER)
NAPE = " nape"
LONG_ONES = (*QUICK_ONES, *(f"{name}{NAPE}" for name in QUICK_ONES))
SEED = 20190904

Attend = Callable[["Inputs"], Tensor]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The tensors of one setting."""

    q: Tensor  # (B, H, Lq, D)
    k: Tensor  # (B, H, Lk, D)
    v: Tensor  # (B, H, Lk, D)
    grad: Tensor  # (B, H, Lq, D), of the output
    key_mask: Tensor | None  # (B, Lk), True = may attend
    causal: bool

    @property
    def allowed(self) -> int:
        """How many (query, key) pairs may have weight."""
        batch, heads, queries, _ = self.q.shape
        keys = self.k.shape[2]
        if self.key_mask is not None:
            return heads * queries * int(self.key_mask.sum())
        return batch * heads * (queries * (queries + 1) // 2 if self.causal else queries * keys)


def make_inputs(setting: Setting) -> Inputs:
    """Normal deviates; the same numbers for the same sizes."""
    generator = torch.Generator().manual_seed(SEED + setting.keys)
    head = (setting.batch, setting.heads)
    q = torch.randn(*head, setting.queries, setting.size, generator=generator).mul_(setting.scale).requires_grad_()
    k = torch.randn(*head, setting.keys, setting.size, generator=generator).requires_grad_()
    v = torch.randn(*head, setting.keys, setting.size, generator=generator).requires_grad_()
    grad = torch.randn(*head, setting.queries, setting.size, generator=generator)
    key_mask = None
    if setting.kind == "padded":
        key_mask = torch.ones(setting.batch, setting.keys, dtype=torch.bool)
        key_mask[::2, setting.keys - setting.keys // 4 :] = False
    return Inputs(q=q, k=k, v=v, grad=grad, key_mask=key_mask, causal=setting.kind in ("causal", "prefill"))


def options(name: str, heads: int) -> dict[str, Any]:
    """How a contestant of ours calls `attention`; a tensor among them that requires gradients is a parameter."""
    if name.endswith(NAPE):
        return options(name.removesuffix(NAPE), heads) | {"alibi_slopes": nape_slopes(heads)}
    if name == "learned":
        return {"alpha": torch.full((heads,), 1.49).requires_grad_()}
    if name == "learned spread":
        return {"alpha": (1.0 + torch.sigmoid(torch.linspace(-1.5, 1.5, heads))).requires_grad_()}
    if name in ("rela", "softmax"):
        return {"normalizer": name}
    if name not in OURS:
        raise ArgumentError(f"contestant {name!r} is not known; choose one of {', '.join((SDPA, *CONTESTANTS))}.")
    return {"alpha": float(name)}


def contestant(name: str, heads: int) -> tuple[Attend, tuple[Tensor, ...]]:
    """The function of a contestant, and the parameters it wants gradients for beside q, k and v."""
    if name == SDPA:
        return _sdpa, ()
    if name == PEER:
        return partial(_composed, peer_functions()["1.5"]), ()
    how = options(name, heads)
    return partial(_ours, how), tuple(value for value in how.values() if isinstance(value, Tensor) and value.requires_grad)


def forward(attend: Attend, inputs: Inputs) -> Callable[[], object]:
    """The forward pass alone, without autograd."""

    def run() -> object:
        with torch.no_grad():
            return attend(inputs)

    return run


def forward_backward(attend: Attend, inputs: Inputs, parameters: tuple[Tensor, ...]) -> Callable[[], object]:
    """Forward, and the gradients to q, k, v and the parameters."""
    wanted = (inputs.q, inputs.k, inputs.v, *parameters)

    def run() -> object:
        return torch.autograd.grad(attend(inputs), wanted, inputs.grad)

    return run


def density(name: str, inputs: Inputs) -> float:
    """The share of allowed weights that are not zero, counted by the kernel."""
    if name == SDPA:
        return 1.0
    how = options("1.5" if name == PEER else name, inputs.q.shape[1])
    with torch.no_grad():
        found = _attend(inputs, how | {"return_stats": True})
    if not isinstance(found, Attention) or found.stats is None:
        raise ArgumentError(f"contestant {name!r} returned no statistics.")
    return float(found.stats.support_size.sum()) / inputs.allowed


def _sdpa(inputs: Inputs) -> Tensor:
    mask = None if inputs.key_mask is None else inputs.key_mask[:, None, None, :]  # broadcasts over heads and queries
    return scaled_dot_product_attention(inputs.q, inputs.k, inputs.v, attn_mask=mask, is_causal=inputs.causal)


def _attend(inputs: Inputs, how: dict[str, Any]) -> Tensor | Attention:
    if "alibi_slopes" in how:  # distances need places: queries are the last ones of the keys
        how = how | {"causal_offset": inputs.k.shape[2] - inputs.q.shape[2]}
    causal = inputs.causal or "alibi_slopes" in how
    return attention(inputs.q, inputs.k, inputs.v, key_padding_mask=inputs.key_mask, is_causal=causal, **how)


def _ours(how: dict[str, Any], inputs: Inputs) -> Tensor:
    out = _attend(inputs, how)
    return out.output if isinstance(out, Attention) else out


def _composed(normalizer: Normalizer, inputs: Inputs) -> Tensor:
    scores = torch.matmul(inputs.q, inputs.k.transpose(-1, -2)) / math.sqrt(inputs.q.shape[-1])
    return torch.matmul(normalizer(scores, None), inputs.v)
