"""A small translation model learns to copy and to reverse, by softmax, learned entmax and ReLA, and writes both by itself.

Every batch is fresh, of many lengths and padded, and a mark in front says which is wanted: `COPY a b c` -> `a b c`,
`REVERSE a b c` -> `c b a`. So one model has to use positions, the source and its mask.
"""

import pytest
import torch
from torch import Tensor

from entformer.data.batch import Batch
from entformer.models.config import AttentionConfig, Seq2SeqConfig
from entformer.models.seq2seq import KINDS, Seq2Seq
from entformer.text.tokenizer import BOS, EOS, PAD

SYMBOLS, LONGEST, ROWS, STEPS = 12, 8, 48, 500
COPY, REVERSE = 4, 5
FIRST = 6


def make_batch(rows: int, generator: torch.Generator) -> Batch:
    lengths = torch.randint(3, LONGEST + 1, (rows, 1), generator=generator)
    symbols = torch.randint(FIRST, FIRST + SYMBOLS, (rows, LONGEST), generator=generator)
    reverse = torch.randint(2, (rows, 1), generator=generator) == 1
    at = torch.arange(LONGEST).expand(rows, -1)
    answer = symbols.gather(1, torch.where(reverse, lengths - 1 - at, at).clamp(min=0))

    def ended(first: Tensor, tokens: Tensor) -> Tensor:
        """first, the first `lengths` tokens, EOS, padding: (rows, LONGEST + 2)."""
        tokens = tokens.masked_fill(at >= lengths, PAD)
        return torch.cat([first, tokens, torch.full((rows, 1), PAD)], 1).scatter(1, lengths + 1, EOS)

    source = ended(torch.where(reverse, REVERSE, COPY), symbols)
    target = ended(torch.full((rows, 1), BOS), answer)
    return Batch(source, target, lengths[:, 0] + 2, lengths[:, 0] + 1, tuple(range(rows)))


def train(model: Seq2Seq) -> None:
    generator = torch.Generator().manual_seed(1)
    groups = model.parameter_groups()
    optimizer = torch.optim.AdamW(
        [
            {"params": groups["decay"], "weight_decay": 0.01},
            {"params": groups["no_decay"], "weight_decay": 0.0},
            {"params": groups["alpha"], "weight_decay": 0.0},
        ]
    )
    rates = [4e-3, 4e-3, 4e-2]  # the sigmoid in alpha flattens steps
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=STEPS)
    for _ in range(STEPS):
        sums = model.loss(make_batch(ROWS, generator))
        optimizer.zero_grad()
        (sums.loss / sums.tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


def write(model: Seq2Seq, source: Tensor, length: int) -> Tensor:
    """What the model writes, (B, length), greedily, one token at a time from its caches."""
    state, tokens = model.start(source), torch.full((source.shape[0],), BOS)
    written = []
    for _ in range(length):
        tokens = model.step(tokens, state).argmax(-1)
        written.append(tokens)
    return torch.stack(written, 1)


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", ["softmax", "entmax", "rela"])
def test_copy_and_reverse_are_learned(normalizer: str) -> None:
    torch.manual_seed(0)
    attention = AttentionConfig(normalizer=normalizer)
    model = Seq2Seq(
        Seq2SeqConfig(
            vocab_size=FIRST + SYMBOLS,
            encoder_layers=1,
            decoder_layers=1,
            heads=4,
            width=64,
            hidden=128,
            dropout=0.0,
            label_smoothing=0.0,
            **dict.fromkeys(KINDS, attention),
        )
    )
    start = model.alphas()
    train(model)
    model.eval()
    batch = make_batch(256, torch.Generator().manual_seed(2))  # of 12^8 sequences: hardly any was seen
    labels = batch.target[:, 1:]
    written = write(model, batch.source, labels.shape[1])
    counted = labels != PAD
    accuracy = (written == labels)[counted].float().mean().item()
    assert accuracy >= 0.99, f"token accuracy {accuracy:.3f}; guessing gives {1 / SYMBOLS:.3f}"
    if normalizer == "entmax":
        for kind in KINDS:
            moved = (model.alphas()[kind] - start[kind]).abs()
            assert (moved > 0.01).float().mean() >= 0.75, (kind, moved)
