"""The encoder-decoder Transformer.

    memory = encoder(sqrt(d) E[source] + positions)                                             (B, S, d)
    hidden = decoder(sqrt(d) E[BOS, target...] + positions, memory), causal                     (B, T, d)
    scores = hidden W^T, W = E if embeddings are tied                                           (B, T, V)

Every head of encoder self, decoder self and cross attention may have its own learned alpha (Correia et al. 2019). Masks:
True = a token. The training loss skips padding in the output layer, the largest part of a small model.
"""

import math
from collections.abc import Iterator
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entformer.errors import ArgumentError
from entformer.functional import log_entmax
from entformer.models.attention_settings import AttentionModel, attention_penalty, build_attention
from entformer.models.config import Seq2SeqConfig
from entformer.models.fused_loss import LossSums, output_loss
from entformer.models.special_tokens import PAD
from entformer.models.state import DecoderState
from entformer.nn.alpha import LearnedAlpha
from entformer.nn.cache import unchanged_on_error
from entformer.nn.dropout import Dropout
from entformer.nn.layers import DecoderLayer, EncoderLayer
from entformer.nn.linear import linear
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.positions import Positions, Sinusoidal

__all__ = ["KINDS", "LossSums", "Seq2Seq"]

KINDS = ("encoder", "decoder", "cross")
"""The attention types: encoder self-attention, decoder self-attention, cross attention."""


class Batch(Protocol):
    """What `Seq2Seq.loss` reads of a batch; `entformer.data.batch.Batch` is one."""

    @property
    def source(self) -> Tensor: ...  # (B, S) int64: tokens, EOS, padding
    @property
    def source_mask(self) -> Tensor: ...  # (B, S) bool, True = a token
    @property
    def target(self) -> Tensor: ...  # (B, T) int64: BOS, tokens, EOS, padding
    @property
    def target_lengths(self) -> Tensor: ...  # (B,) int64 of the labels: EOS counted, BOS not


class Seq2Seq(AttentionModel):
    """A Transformer for translation, configured by `Seq2SeqConfig`."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.config = config
        size = (config.vocab_size, config.width)
        self.source_embedding = nn.Parameter(torch.empty(size))
        self.target_embedding = None if config.tied_embeddings == "all" else nn.Parameter(torch.empty(size))
        self.output_weight = nn.Parameter(torch.empty(size)) if config.tied_embeddings == "none" else None
        self.positions = Sinusoidal(config.width) if config.positions == "sinusoidal" else None
        self.dropout = Dropout(config.dropout)
        self.kind_alphas = nn.ModuleDict()  # alphas that several layers use belong to the model
        options: dict[str, Any] = {
            "dropout": config.dropout,
            "activation_dropout": config.activation_dropout,
            "pre_norm": config.norm == "pre",
        }
        self.encoder = nn.ModuleList(
            EncoderLayer(self._attention("encoder", n), config.hidden, **options) for n in range(config.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            DecoderLayer(self._attention("decoder", n), self._attention("cross", n), config.hidden, **options)
            for n in range(config.decoder_layers)
        )
        last = config.norm == "pre"  # post-norm layers end with a norm of their own
        self.encoder_norm = nn.LayerNorm(config.width) if last else nn.Identity()
        self.decoder_norm = nn.LayerNorm(config.width) if last else nn.Identity()
        self._init_weights()

    def _attention(self, kind: str, layer: int) -> MultiheadAttention:
        config = self.config
        inside = config.positions if kind != "cross" and config.positions != "sinusoidal" else "none"
        return build_attention(
            config.kinds[kind],
            config.width,
            config.heads,
            shared_alpha=self._shared_alpha(kind, layer),
            dropout=config.attention_dropout,
            positions=Positions(inside, config.rotary_base, config.nape_slopes, config.nape_share),
        )

    def _shared_alpha(self, kind: str, layer: int) -> LearnedAlpha | None:
        """Returns the alpha that this layer shares with others, created for the first of them; None: it has its own."""
        chosen = self.config.kinds[kind]
        name = {"kind": kind, "across_kinds": f"layer{layer}", "model": "model"}.get(chosen.alpha_tied)
        if name is None or not chosen.learned:
            return None
        if name not in self.kind_alphas:
            one = chosen.alpha_tied != "across_kinds"  # for all heads
            form = chosen.alpha_parametrization
            made = LearnedAlpha(self.config.heads, tied=one, init=chosen.alpha_init, parametrization=form)
            self.kind_alphas[name] = made
        return cast(LearnedAlpha, self.kind_alphas[name])

    def _init_weights(self) -> None:
        """Embeddings of variance 1 / d, so that scaled inputs have variance 1 and tied scores too; Xavier elsewhere."""
        with torch.no_grad():
            for weight in (self.source_embedding, self.target_embedding, self.output_weight):
                if weight is not None:
                    weight.normal_(0.0, self.config.width**-0.5)
                    weight[PAD] = 0.0
            for _, _, attention in self.attention_layers():
                nn.init.xavier_uniform_(attention.out_proj.weight)

    # ---- teacher-forced --------------------------------------------------------------------------------------------------

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """Encodes source ids (B, S) as memory (B, S, d). source_mask (B, S), True = a token, is by default where no PAD is."""
        key_mask = _none_if_full(source != PAD if source_mask is None else source_mask)
        x = self._embed(self.source_embedding, source)
        for layer in self.encoder:
            x = layer(x, key_mask)
        memory: Tensor = self.encoder_norm(x)
        return memory

    def decode(self, target_in: Tensor, memory: Tensor, source_mask: Tensor | None = None) -> Tensor:
        """Decodes target_in (B, T), BOS and the tokens so far, to states (B, T, d) that score the token after each."""
        memory_mask = None if source_mask is None else _none_if_full(source_mask)
        x = self._embed(self._target_weight, target_in)
        for layer in self.decoder:
            x = layer(x, memory, memory_mask)
        hidden: Tensor = self.decoder_norm(x)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the scores of all tokens, (..., V)."""
        return linear(hidden, self._last_weight)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Returns log-probabilities of scores (..., V), at least float32; with output="entmax" -inf where exactly zero."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.config.output == "entmax":
            return log_entmax(logits, self.config.output_alpha)
        return logits.log_softmax(-1)

    def loss(self, batch: Batch) -> LossSums:
        """Computes the training loss of a batch, summed over its target tokens."""
        source_mask = batch.source_mask
        target_in, labels = batch.target[:, :-1], batch.target[:, 1:]
        hidden = self.decode(target_in, self.encode(batch.source, source_mask), source_mask)
        counts = torch.arange(labels.shape[1], device=labels.device) < batch.target_lengths[:, None]  # (B, T)
        tokens = int(batch.target_lengths.sum())
        if tokens < counts.numel():
            index = counts.flatten().nonzero().squeeze(1)
            hidden, labels = hidden.flatten(0, 1).index_select(0, index), labels.flatten().index_select(0, index)
        else:
            hidden, labels = hidden.flatten(0, 1), labels.flatten()
        sums = output_loss(
            hidden,
            self._last_weight,
            labels,
            label_smoothing=self.config.label_smoothing,
            alpha=self.config.output_alpha if self.config.output == "entmax" else 1.0,
        )
        penalty = attention_penalty(layer for _, _, layer in self.attention_layers()) if self.training else None
        return LossSums(sums.loss if penalty is None else sums.loss + tokens * penalty, sums.nll, sums.correct, tokens)

    def run_attention(self, batch: Batch) -> None:
        """Runs every attention layer on a batch, teacher-forced."""
        self.decode(batch.target[:, :-1], self.encode(batch.source, batch.source_mask), batch.source_mask)

    def forward(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Computes the scores (B, T, V) of the token after each of target_in (B, T)."""
        source_mask = source != PAD
        return self.logits(self.decode(target_in, self.encode(source, source_mask), source_mask))

    def _embed(self, weight: Tensor, ids: Tensor, start: int = 0) -> Tensor:
        """ids (B, L) -> (B, L, d); the first stands at position `start`."""
        scale = math.sqrt(self.config.width)
        x = F.embedding(ids, weight, padding_idx=PAD)
        if self.positions is None:
            x = x * scale
        else:  # the table has float32 or better; the sum is rounded once
            x = torch.add(self.positions(ids.shape[1], start, like=x), x, alpha=scale).to(x.dtype)
        dropped: Tensor = self.dropout(x)
        return dropped

    @property
    def _target_weight(self) -> Tensor:
        return self.source_embedding if self.target_embedding is None else self.target_embedding

    @property
    def _last_weight(self) -> Tensor:
        return self._target_weight if self.output_weight is None else self.output_weight

    # ---- token by token --------------------------------------------------------------------------------------------------

    def start(self, source: Tensor, source_mask: Tensor | None = None) -> DecoderState:
        """Encodes source (B, S) and projects its keys and values once, without gradients."""
        with torch.no_grad():
            mask = source != PAD if source_mask is None else source_mask
            memory = self.encode(source, mask)
            memories = [attention.memory_cache(memory) for kind, _, attention in self.attention_layers() if kind == "cross"]
        return DecoderState(memories, _none_if_full(mask))

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Decodes the next token of every row, (B,), or several, (B, n). Returns scores (B, V) of the token after the last."""
        tokens = tokens[:, None] if tokens.dim() == 1 else tokens
        if tokens.dim() != 2 or tokens.shape[0] != state.batch or tokens.shape[1] == 0:
            raise ArgumentError(f"tokens must be ({state.batch},) or ({state.batch}, n), not {tuple(tokens.shape)}.")
        if len(state.caches) != len(self.decoder):
            raise ArgumentError(f"the state has {len(state.caches)} layers, but this decoder has {len(self.decoder)}.")
        with torch.no_grad(), unchanged_on_error(state):
            x = self._embed(self._target_weight, tokens, state.length)
            for layer, cache, memory in zip(self.decoder, state.caches, state.memories, strict=True):
                x = layer(x, None, state.source_mask, cache=cache, memory_cache=memory)
            return self.logits(self.decoder_norm(x[:, -1]))

    # ---- attention layers, parameters ------------------------------------------------------------------------------------

    def attention_layers(self) -> Iterator[tuple[str, int, MultiheadAttention]]:
        """Yields (attention type, layer, module) of every attention, types in the order of `KINDS`."""
        encoder, decoder = cast(list[EncoderLayer], self.encoder), cast(list[DecoderLayer], self.decoder)
        yield from (("encoder", number, layer.attention) for number, layer in enumerate(encoder))
        yield from (("decoder", number, layer.attention) for number, layer in enumerate(decoder))
        yield from (("cross", number, layer.cross_attention) for number, layer in enumerate(decoder))


def _none_if_full(mask: Tensor) -> Tensor | None:
    """Returns None for a mask that is True everywhere, where reading it is cheap: attention is faster without one."""
    if mask.device.type == "cpu" and not torch.compiler.is_compiling() and bool(mask.all()):
        return None
    return mask
