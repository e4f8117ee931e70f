"""Training speed of our translation model, torch.nn.Transformer and Hugging Face's Marian of the same size.

    python benchmarks/training_baselines.py [--quick] [--threads 1] [--preset tiny]

nn.Transformer is written as in its tutorial: padded scores, torch's cross entropy and dropout. Marian comes from a fresh
configuration. All share sizes, one tied embedding, dropout, label smoothing and optimizer.
"""

import argparse
import math
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from entformer.bench.training import SMOOTHING, LossFn, benchmark_training
from entformer.data.batch import Batch
from entformer.models.config import Seq2SeqConfig
from entformer.nn.positions import Sinusoidal
from entformer.text.tokenizer import BOS, EOS, PAD


class PlainTransformer(nn.Module):
    """torch.nn.Transformer with embeddings and a tied output layer."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__()
        self.scale = math.sqrt(config.width)
        self.embedding = nn.Embedding(config.vocab_size, config.width, padding_idx=PAD)
        nn.init.normal_(self.embedding.weight, 0.0, config.width**-0.5)
        self.positions = Sinusoidal(config.width)
        self.dropout = nn.Dropout(config.dropout)
        layers = (config.encoder_layers, config.decoder_layers)
        self.transformer = nn.Transformer(
            config.width, config.heads, *layers, config.hidden, config.dropout, batch_first=True, norm_first=True
        )

    def embed(self, ids: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(self.embedding(ids) * self.scale + self.positions(ids.shape[1]))
        return embedded

    def loss(self, batch: Batch) -> Tensor:
        padding, target_in = ~batch.source_mask, batch.target[:, :-1]
        hidden = self.transformer(
            self.embed(batch.source),
            self.embed(target_in),
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(target_in.shape[1]),
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return summed_loss(hidden @ self.embedding.weight.t(), batch)


def summed_loss(scores: Tensor, batch: Batch) -> Tensor:
    labels = batch.target[:, 1:].flatten()
    return F.cross_entropy(scores.flatten(0, 1).float(), labels, ignore_index=PAD, reduction="sum", label_smoothing=SMOOTHING)


def build_transformer(config: Seq2SeqConfig) -> tuple[nn.Module, LossFn]:
    model = PlainTransformer(config)
    return model, model.loss


def build_marian(config: Seq2SeqConfig) -> tuple[nn.Module, LossFn]:
    from transformers import MarianConfig, MarianMTModel

    marian: Any = MarianConfig(
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
        **{"attn_implementation": "sdpa"},
    )
    model: Any = MarianMTModel(marian)

    def loss(batch: Batch) -> Tensor:
        mask, target_in = batch.source_mask.long(), batch.target[:, :-1]
        found = model(input_ids=batch.source, attention_mask=mask, decoder_input_ids=target_in, use_cache=False)
        return summed_loss(found.logits, batch)

    return model, loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small batches, few rounds")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--preset", default="tiny")
    options = parser.parse_args()
    extra = {"nn.Transformer": build_transformer, "Marian": build_marian}
    report = benchmark_training(
        preset=options.preset, num_threads=options.threads, quick=options.quick, extra=extra, progress=print
    )
    for m in report.measurements:
        print(f"{m.case}: {m.implementation} {m.ratio:.2f} ({m.ratio_low:.2f} to {m.ratio_high:.2f}) of {report.baseline}")
    print(report.signature)


if __name__ == "__main__":
    main()
