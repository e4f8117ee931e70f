"""What every head attended to in a translation. In: a model, source and target ids. Out: an `AttentionRecord`.

The model reads the finished translation once more, teacher-forced: one pass gives the same weights as the steps of the search
did, for all positions at once, and the search itself need not carry them along.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from entformer.decoding.records import AttentionRecord, HeadKey, SparseRows
from entformer.errors import ArgumentError
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.hooks import AttentionTrace
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.text.tokenizer import BOS, EOS, SubwordTokenizer


def record_attention(
    model: Seq2Seq, source_ids: Sequence[int], target_ids: Sequence[int], *, subwords: SubwordTokenizer | None = None
) -> AttentionRecord:
    """Record one sentence. Ids come without BOS and EOS; with `subwords` the record also holds the pieces as text."""
    source, target = (*source_ids, EOS), (BOS, *target_ids, EOS)
    for side, ids in (("source", source), ("target", target)):
        if any(not 0 <= i < model.config.vocab_size for i in ids):
            raise ArgumentError(f"the {side} holds ids outside of the model's vocabulary, 0 to {model.config.vocab_size - 1}.")
    device = model.source_embedding.device
    heads: dict[HeadKey, SparseRows] = {}

    def watch(kind: str, layer: int, module: MultiheadAttention, trace: AttentionTrace) -> None:
        heads.update(rows_per_head(kind, layer, trace))

    training = model.training
    model.eval()  # dropout would make it another model than the one that translated
    try:
        with torch.no_grad(), attention_hooks(model, watch):
            memory = model.encode(torch.tensor([source], device=device))
            model.decode(torch.tensor([target[:-1]], device=device), memory)
    finally:
        model.train(training)
    alphas = {
        HeadKey(kind, layer, head): float(values[layer, head])
        for kind, values in model.alphas().items()
        for layer in range(values.shape[0])
        for head in range(values.shape[1])
    }
    return AttentionRecord(
        source=source,
        target=target,
        heads=heads,
        normalizers={kind: module.normalizer for kind, _, module in model.attention_layers()},
        alphas=alphas,
        source_pieces=() if subwords is None else tuple(subwords.pieces(source)),
        target_pieces=() if subwords is None else tuple(subwords.pieces(target)),
    )


@contextlib.contextmanager
def attention_hooks(
    model: Seq2Seq, watch: Callable[[str, int, MultiheadAttention, AttentionTrace], None], *, kinds: Sequence[str] = ()
) -> Iterator[None]:
    """Every attention layer (of `kinds`, if given) hands what it does to `watch`; hooks that were there before come back."""
    layers = [found for found in model.attention_layers() if not kinds or found[0] in kinds]
    before = [module.hook for _, _, module in layers]
    for kind, layer, module in layers:
        module.hook = partial(watch, kind, layer, module)
    try:
        yield
    finally:
        for (_, _, module), hook in zip(layers, before, strict=True):
            module.hook = hook


def rows_per_head(kind: str, layer: int, trace: AttentionTrace) -> Iterator[tuple[HeadKey, SparseRows]]:
    """The rows of a batch of one, (1, H, Lq), head by head."""
    _, heads, queries, _ = trace.query.shape
    crow = trace.support.crow.cpu().numpy()
    col = trace.support.col.cpu().numpy().astype(np.int32)
    weight = trace.support.weight.cpu().numpy().astype(np.float32)
    for head in range(heads):
        own = crow[head * queries : (head + 1) * queries + 1]
        inside = slice(int(own[0]), int(own[-1]))
        yield (
            HeadKey(kind, layer, head),
            SparseRows((own - own[0]).astype(np.int64), col[inside], weight[inside], trace.key.shape[2]),
        )
