"""The decoder-only Transformer.

    x      = E[ids]  (times sqrt(d), plus sinusoidal positions, if configured)                  (B, L, d)
    x      = layer(x), causal; `CausalLayer` of nn/layers.py                                    layers times
    scores = norm(x) W^T                                                                        (B, L, V)

As in Vasylenko et al. (2025): RMSNorm before and after each sublayer, gated feed-forward, no biases. Masks: True = a token.
Decoding caches keys and values; sparse heads with ALiBi cache no more than their window (nn/window.py).
"""

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entformer.errors import ArgumentError
from entformer.models.attention_settings import AttentionModel, attention_penalty, build_attention
from entformer.models.fused_loss import LossSums, output_loss
from entformer.models.lm_config import LMConfig
from entformer.models.state import LMState
from entformer.nn.alpha import LearnedAlpha
from entformer.nn.cache import KeyValueCache, WindowedCache, unchanged_on_error
from entformer.nn.layers import EPS, CausalLayer
from entformer.nn.linear import linear
from entformer.nn.masks import sequence_starts
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.positions import Positions, Sinusoidal
from entformer.nn.rms_norm import RMSNorm

__all__ = ["CausalLM", "LMState"]


class CausalLM(AttentionModel):
    """A decoder-only language model, configured by `LMConfig`."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.config = config
        chosen = config.attention
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.width))
        self.output_weight = None if config.tied_output else nn.Parameter(torch.empty(config.vocab_size, config.width))
        self.positions = Sinusoidal(config.width) if config.positions == "sinusoidal" else None
        shared = chosen.learned and chosen.alpha_tied in ("kind", "model")  # there is one kind of attention
        start, form = chosen.alpha_init, chosen.alpha_parametrization
        self.shared_alpha = LearnedAlpha(config.heads, tied=True, init=start, parametrization=form) if shared else None
        self.layers = nn.ModuleList(CausalLayer(self._attention(), config.hidden) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, eps=EPS)
        self._init_weights()

    def _attention(self) -> MultiheadAttention:
        config = self.config
        inside = "none" if config.positions == "sinusoidal" else config.positions
        return build_attention(
            config.attention,
            config.width,
            config.heads,
            shared_alpha=self.shared_alpha,
            bias=False,
            positions=Positions(inside, config.rotary_base, config.nape_slopes, config.nape_share),
        )

    @property
    def _embedding_scale(self) -> float:
        return math.sqrt(self.config.width) if self.config.scaled_embedding else 1.0

    def _init_weights(self) -> None:
        """Initializes embeddings and matrices from normal distributions; normalizers and scalings initialize their own."""
        std = self.config.init_std
        with torch.no_grad():
            self.embedding.normal_(0.0, self.config.embedding_std / self._embedding_scale)
            if self.output_weight is not None:
                self.output_weight.normal_(0.0, std or self.config.width**-0.5)
            for layer in self.layers:
                for name, weight in layer.named_parameters():
                    if name in ("attention.in_proj_weight", "attention.out_proj.weight") or name.startswith("feed_forward."):
                        weight.normal_(0.0, std or weight.shape[1] ** -0.5)

    # ---- all at once -----------------------------------------------------------------------------------------------------

    def hidden(
        self, ids: Tensor, mask: Tensor | None = None, *, cu_seqlens: Tensor | None = None, state: LMState | None = None
    ) -> Tensor:
        """Computes states (B, L, d) of ids (B, L), from which the token after each is scored.

        Args:
            mask: (B, L), True = a token, False = padding on either side.
            cu_seqlens: (n + 1,) int32: ids are one row with n sequences, of which each attends to itself only; sequence s is
                [cu_seqlens[s], cu_seqlens[s + 1]).
            state: the earlier tokens; ids are appended to it.
        """
        if cu_seqlens is not None and (state is not None or mask is not None or ids.shape[0] != 1):
            raise ArgumentError("cu_seqlens needs ids of one row, without a mask or a state.")
        if mask is not None and mask.shape != ids.shape:
            raise ArgumentError(f"mask has shape {tuple(mask.shape)}; it must be that of ids, {tuple(ids.shape)}.")
        if mask is not None and mask.dtype != torch.bool:
            raise ArgumentError(f"mask must be boolean, True = a token, not {mask.dtype}.")
        if state is None:
            return self._hidden(ids, mask, cu_seqlens, None, 0)
        if len(state.caches) != len(self.layers) or state.batch not in (None, ids.shape[0]):
            raise ArgumentError(
                f"the state has {len(state.caches)} layers and {state.batch} rows; this model has {len(self.layers)} layers, "
                f"and ids have {ids.shape[0]} rows."
            )
        start = state.length
        if mask is not None or state.mask is not None:
            before = state.mask if state.mask is not None else ids.new_ones(ids.shape[0], start, dtype=torch.bool)
            now = mask if mask is not None else torch.ones_like(ids, dtype=torch.bool)
            mask = torch.cat([before, now], 1)
        with unchanged_on_error(state):
            state.mask = mask
            return self._hidden(ids, mask, None, state, start)

    def _hidden(self, ids: Tensor, mask: Tensor | None, packed: Tensor | None, state: LMState | None, start: int) -> Tensor:
        """`hidden` without checks; `mask` (B, start + L) is of all tokens so far."""
        x = F.embedding(ids, self.embedding)
        if self.config.scaled_embedding:
            x = x * self._embedding_scale
        if self.positions is not None:
            x = (x + self._position_table(ids, x, start, mask, packed)).to(x.dtype)
        caches = [None] * len(self.layers) if state is None else state.caches
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, mask, cache=cache, cu_seqlens=packed)
        out: Tensor = self.norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the scores of all tokens, (..., V)."""
        return linear(hidden, self.embedding if self.output_weight is None else self.output_weight)

    def forward(self, ids: Tensor, mask: Tensor | None = None, *, cu_seqlens: Tensor | None = None) -> Tensor:
        """Computes the scores (B, L, V) of the token after each of ids (B, L)."""
        return self.logits(self.hidden(ids, mask, cu_seqlens=cu_seqlens))

    def loss(self, ids: Tensor, labels: Tensor, *, cu_seqlens: Tensor | None = None) -> LossSums:
        """Computes the loss of labels (B, L), the tokens after ids (B, L), summed over them.

        Args:
            cu_seqlens: where sequences begin in the tokens of all rows one after the other; None: each row is a sequence.
        """
        if cu_seqlens is not None:
            ids = ids.reshape(1, -1)
        hidden = self.hidden(ids, cu_seqlens=cu_seqlens)
        weight = self.embedding if self.output_weight is None else self.output_weight
        sums = output_loss(hidden.flatten(0, 1), weight, labels.flatten())
        penalty = attention_penalty(layer for _, _, layer in self.attention_layers()) if self.training else None
        count = labels.numel()
        return LossSums(sums.loss if penalty is None else sums.loss + count * penalty, sums.nll, sums.correct, count)

    def run_attention(self, batch: Any) -> None:
        """Runs every attention layer on the inputs of a batch."""
        self.hidden(batch.inputs)

    def _position_table(self, ids: Tensor, x: Tensor, start: int, mask: Tensor | None, packed: Tensor | None) -> Tensor:
        """Returns sinusoidal positions (L, d) or (B, L, d), counted from the first token of the row or of its sequence."""
        table: Tensor = self.positions(start + ids.shape[1], like=x)  # type: ignore[misc]  # called only where there is one
        if packed is not None:
            return table[torch.arange(ids.shape[1], device=ids.device) - sequence_starts(packed, ids.shape[1])]
        if mask is not None:
            return table[(mask.cumsum(1)[:, start:] - 1).clamp(min=0)]
        return table[start:]

    # ---- token by token --------------------------------------------------------------------------------------------------

    def windows(self) -> list[list[int | None]]:
        """Returns for each layer and head how many keys it can give weight to with its present parameters; None: any number."""
        return [layer.windows() for layer in cast(list[CausalLayer], self.layers)]

    def start(self, *, windowed: bool = True) -> LMState:
        """Returns an empty state. `windowed`: sparse ALiBi heads drop keys that can have no weight; the output is the same."""
        windows = self.windows() if windowed else []
        if any(window is not None for layer in windows for window in layer):
            return LMState([WindowedCache(layer) for layer in windows])
        return LMState([KeyValueCache() for _ in self.layers])

    def step(self, tokens: Tensor, state: LMState, mask: Tensor | None = None) -> Tensor:
        """Decodes the next token of every row, (B,), or several, (B, n). Returns scores (B, V) of the token after the last."""
        tokens = tokens[:, None] if tokens.dim() == 1 else tokens
        if tokens.dim() != 2 or tokens.shape[1] == 0:
            raise ArgumentError(f"tokens must be (B,) or (B, n), not {tuple(tokens.shape)}.")
        with torch.no_grad(), unchanged_on_error(state):
            return self.logits(self.hidden(tokens, mask, state=state)[:, -1])

    @torch.no_grad()
    def generate(
        self,
        prompt: Tensor,
        new_tokens: int,
        *,
        mask: Tensor | None = None,
        eos: int | None = None,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
        windowed: bool = True,
    ) -> Tensor:
        """Generates the tokens that follow prompt (B, L), (B, up to new_tokens). Rows repeat `eos`; stops when all have it.

        Args:
            mask: (B, L), True = a token: shorter prompts are padded on the left.
            temperature: 0 takes the token with the highest score, above 0 samples from softmax(scores / temperature).
        """
        if prompt.dim() != 2 or prompt.shape[1] == 0:
            raise ArgumentError(f"the prompt must be (B, L) with at least one token, not {tuple(prompt.shape)}.")
        if temperature < 0.0 or not math.isfinite(temperature):
            raise ArgumentError(f"temperature={temperature} must be a finite number of at least 0.")
        if mask is not None and not bool(mask[:, -1].all()):
            raise ArgumentError("prompts are padded on the left: the last column of the mask must be True.")
        state, found = self.start(windowed=windowed), []
        done = torch.zeros(prompt.shape[0], dtype=torch.bool, device=prompt.device)
        scores = self.step(prompt, state, mask) if new_tokens > 0 else None
        while scores is not None:
            if temperature > 0.0:
                token = torch.multinomial((scores.float() / temperature).softmax(-1), 1, generator=generator)[:, 0]
            else:
                token = scores.argmax(-1)
            token = token if eos is None else token.masked_fill(done, eos)
            found.append(token)
            done = done if eos is None else done | (token == eos)
            scores = None if len(found) == new_tokens or bool(done.all()) else self.step(token, state)
        return torch.stack(found, 1) if found else prompt[:, :0]

    # ---- attention layers, parameters ------------------------------------------------------------------------------------

    def attention_layers(self) -> Iterator[tuple[str, int, MultiheadAttention]]:
        """Yields ("decoder", layer, module) of every attention."""
        yield from (("decoder", number, layer.attention) for number, layer in enumerate(cast(list[CausalLayer], self.layers)))
