"""Recording of the attention weights of a translation.

The weights are computed in one teacher-forced pass over the finished translation; they equal those of the decoding steps.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from entformer.decoding.records import AttentionRecord, HeadKey, SparseRows
from entformer.errors import ArgumentError
from entformer.kernels.attention.api import Support
from entformer.models.attention_settings import AttentionModel
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.hooks import AttentionTrace
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.text.tokenizer import BOS, EOS, SubwordTokenizer


def record_attention(
    model: Seq2Seq, source_ids: Sequence[int], target_ids: Sequence[int], *, subwords: SubwordTokenizer | None = None
) -> AttentionRecord:
    """Returns the attention weights of one sentence.

    Args:
        model: The model.
        source_ids, target_ids: Ids without BOS and EOS.
        subwords: Tokenizer that adds the pieces as text.
    """
    source, target = (*source_ids, EOS), (BOS, *target_ids, EOS)
    for side, ids in (("source", source), ("target", target)):
        if any(not 0 <= i < model.config.vocab_size for i in ids):
            raise ArgumentError(f"{side}_ids must be between 0 and {model.config.vocab_size - 1}, the model's vocabulary.")
    device = model.source_embedding.device
    heads: dict[HeadKey, SparseRows] = {}

    def record(kind: str, layer: int, module: MultiheadAttention, trace: AttentionTrace) -> None:
        rows = rows_per_head(trace.support, trace.query.shape[2], trace.key.shape[2])
        heads.update((HeadKey(kind, layer, head), own) for head, own in enumerate(rows))

    with attention_hooks(model, record):
        memory = model.encode(torch.tensor([source], device=device))
        model.decode(torch.tensor([target[:-1]], device=device), memory)
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
    model: AttentionModel, hook: Callable[[str, int, MultiheadAttention, AttentionTrace], None], *, kinds: Sequence[str] = ()
) -> Iterator[None]:
    """Calls `hook` for every attention layer (of `kinds`, if given), without dropout and without gradients.

    Previous hooks and the mode of the model are restored afterwards.
    """
    layers = [found for found in model.attention_layers() if not kinds or found[0] in kinds]
    before = [module.hook for _, _, module in layers]
    for kind, layer, module in layers:
        module.hook = partial(hook, kind, layer, module)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)
        for (_, _, module), previous in zip(layers, before, strict=True):
            module.hook = previous


def rows_per_head(support: Support, queries: int, keys: int) -> list[SparseRows]:
    """Returns the sparse weights of each head of a batch of one, (1, H, Lq)."""
    crow = support.crow.cpu().numpy().astype(np.int64)
    col = support.col.cpu().numpy().astype(np.int32)
    weight = support.weight.cpu().numpy().astype(np.float32)
    found = []
    for start in range(0, len(crow) - 1, queries):
        own = crow[start : start + queries + 1]
        inside = slice(int(own[0]), int(own[-1]))
        found.append(SparseRows(own - own[0], col[inside], weight[inside], keys))
    return found
