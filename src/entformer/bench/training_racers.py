"""The contestants of `entformer bench training`. In: sizes, and batches of random tokens. Out: one training step of each.

softmax sdpa    our model, softmax by torch's scaled_dot_product_attention: the baseline
softmax         our model, softmax by our kernel
entmax15        our model, alpha = 1.5
learned         our model, a learned alpha for every head, random at first as in the paper
rela            our model, ReLA with the gated norm
nn.Transformer  torch's own, written the way its tutorial has it: padded scores, torch's cross entropy and dropout
Marian          Hugging Face's MarianMTModel of the same size, from a fresh configuration

All have the same sizes, one tied embedding, the same dropout, label smoothing and optimiser.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entformer.data.records import Batch
from entformer.models.config import AttentionConfig, Seq2SeqConfig
from entformer.models.seq2seq import KINDS, Seq2Seq
from entformer.nn.positions import Sinusoidal
from entformer.text.subwords import BOS, EOS, PAD

BASELINE, TORCH, MARIAN = "softmax sdpa", "nn.Transformer", "Marian"
ATTENTION = {
    BASELINE: AttentionConfig(normalizer="softmax", backend="sdpa"),
    "softmax": AttentionConfig(normalizer="softmax"),
    "entmax15": AttentionConfig(normalizer="entmax15"),
    "learned": AttentionConfig(normalizer="entmax"),
    "rela": AttentionConfig(normalizer="rela"),
}
OURS = tuple(ATTENTION)
CONTESTANTS = (*OURS, TORCH, MARIAN)
SMOOTHING = 0.1
SEED = 20190904


def make_batches(tokens: int, mean: float, deviation: float, vocab_size: int, count: int = 3) -> list[Batch]:
    """Batches of about `tokens` target tokens. Pairs are sorted by length before they are cut, as in training."""
    generator = torch.Generator().manual_seed(SEED)
    pairs = max(count * tokens // max(int(mean), 1), 4 * count)
    common = torch.randn(pairs, generator=generator)

    def lengths() -> Tensor:  # of a sentence and of its translation: they vary together
        noise = torch.randn(pairs, generator=generator)
        return (mean + deviation * (0.9 * common + 0.44 * noise)).round().clamp(3, 4 * mean).long()

    source, target = lengths(), lengths()
    order = (target * 1000 + source).argsort()
    cuts = order.chunk(count)
    return [_batch(source[cut], target[cut], vocab_size, generator) for cut in cuts]


def _batch(source_lengths: Tensor, target_lengths: Tensor, vocab_size: int, generator: torch.Generator) -> Batch:
    def ids(lengths: Tensor) -> Tensor:
        rows, length = lengths.shape[0], int(lengths.max())
        made = torch.randint(EOS + 1, vocab_size, (rows, length), generator=generator)
        at = torch.arange(length)
        made[at >= lengths[:, None]] = PAD
        made[at == lengths[:, None] - 1] = EOS
        return made

    target = F.pad(ids(target_lengths), (1, 0), value=BOS)
    return Batch(ids(source_lengths), target, source_lengths, target_lengths, tuple(range(len(source_lengths))))


class PlainTransformer(nn.Module):
    """torch.nn.Transformer with embeddings and a tied output layer."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.scale = math.sqrt(config.width)
        self.embedding = nn.Embedding(config.vocab_size, config.width, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, 0.0, config.width**-0.5)
        self.positions = Sinusoidal(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.transformer = nn.Transformer(
            config.width,
            config.heads,
            config.encoder_layers,
            config.decoder_layers,
            config.hidden,
            config.dropout,
            batch_first=True,
            norm_first=True,
        )

    def _embed(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.embedding(ids) * self.scale + self.positions(ids.shape[1]))
        return embedded

    def loss(self, batch: Batch) -> Tensor:
        padding, target_in = ~batch.source_mask, batch.target[:, :-1]
        hidden = self.transformer(
            self._embed(batch.source),
            self._embed(target_in),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target_in.shape[1]),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return _summed_loss(hidden @ self.embedding.weight.t(), batch)


def _summed_loss(scores: Tensor, batch: Batch) -> Tensor:
    labels = batch.target[:, 1:].flatten()
    return F.cross_entropy(scores.flatten(0, 1).float(), labels, ignore_index=PAD, reduction="sum", label_smoothing=SMOOTHING)


def marian_version() -> str | None:
    """The version of transformers, or None where it is not installed."""
    from entformer.bench.signature import installed_version

    return installed_version("transformers")


def _marian(config: Seq2SeqConfig) -> tuple[nn.Module, Callable[[Batch], Tensor]]:
    from transformers import MarianConfig, MarianMTModel  # heavy, and a development dependency

    made: Any = MarianConfig(
        vocab_size=config.vocab_size,
        d_model=config.width,
        encoder_layers=config.encoder_layers,
        decoder_layers=config.decoder_layers,
        encoder_attention_heads=config.heads,
        decoder_attention_heads=config.heads,
        encoder_ffn_dim=config.hidden,
        decoder_ffn_dim=config.hidden,
        dropout=config.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        max_position_embeddings=512,
        scale_embedding=True,
        use_cache=False,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        **{"attn_implementation": "sdpa"},  # type: ignore[arg-type]
    )
    model: Any = MarianMTModel(made)

    def loss(batch: Batch) -> Tensor:
        found = model(
            input_ids=batch.source,
            attention_mask=batch.source_mask.long(),
            decoder_input_ids=batch.target[:, :-1],
            use_cache=False,
        )
        return _summed_loss(found.logits, batch)

    return model, loss


def contestant(name: str, sizes: dict[str, Any]) -> tuple[nn.Module, Callable[[Batch], Tensor]]:
    """A fresh model and its summed loss."""
    torch.manual_seed(SEED)
    attention = ATTENTION.get(name, ATTENTION[BASELINE])
    config = Seq2SeqConfig(**{**sizes, **dict.fromkeys(KINDS, attention), "label_smoothing": SMOOTHING})
    if name == TORCH:
        plain = PlainTransformer(config)
        return plain, plain.loss
    if name == MARIAN:
        return _marian(config)
    ours = Seq2Seq(config)
    return ours, lambda batch: ours.loss(batch).loss


def training_step(name: str, sizes: dict[str, Any], batches: Sequence[Batch], narrow: bool) -> Callable[[], object]:
    """A whole update on the next batch: forward, backward, AdamW."""
    model, loss_of = contestant(name, sizes)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    turn = 0

    def step() -> object:
        nonlocal turn
        batch = batches[turn % len(batches)]
        turn += 1
        with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
            loss = loss_of(batch)
        (loss / batch.target_tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step
