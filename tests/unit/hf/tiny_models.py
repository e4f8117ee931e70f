"""Tiny random models of every family, made offline from their configurations."""

import os
from collections.abc import Callable
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers as t
from torch import nn

VOCAB, PAD = 97, 1
ENCODER = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37}
ENCODER |= {"max_position_embeddings": 64, "pad_token_id": PAD}
IDS = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": PAD}
DECODER = {**ENCODER, "num_key_value_heads": 2, "head_dim": 8, **IDS}
BART = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37,
    "max_position_embeddings": 64,
    "forced_eos_token_id": None,
    "decoder_start_token_id": 2,
    **IDS,
}
T5 = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 37, "num_layers": 2, "num_heads": 4}
T5 |= {"decoder_start_token_id": 1, "pad_token_id": PAD, "eos_token_id": 2}
IMAGE = {"image_size": 16, "patch_size": 4, "num_channels": 3}
VISION = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37, **IMAGE}

MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: t.BertForMaskedLM(t.BertConfig(**ENCODER)),
    "roberta": lambda: t.RobertaForMaskedLM(t.RobertaConfig(**ENCODER)),
    "albert": lambda: t.AlbertForMaskedLM(t.AlbertConfig(**ENCODER, embedding_size=16)),
    "distilbert": lambda: t.DistilBertForMaskedLM(
        t.DistilBertConfig(vocab_size=VOCAB, dim=32, n_layers=2, n_heads=4, hidden_dim=37, pad_token_id=PAD)
    ),
    "modernbert": lambda: t.ModernBertForMaskedLM(
        t.ModernBertConfig(
            **ENCODER, **{"bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}, local_attention=4
        )
    ),
    "vit": lambda: t.ViTForImageClassification(t.ViTConfig(**VISION)),
    "clip": lambda: t.CLIPModel(t.CLIPConfig(text_config={**ENCODER, **IDS}, vision_config=VISION, projection_dim=16)),
    "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, **IDS)),
    "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**DECODER)),
    "qwen3": lambda: t.Qwen3ForCausalLM(t.Qwen3Config(**DECODER)),
    "mistral": lambda: t.MistralForCausalLM(t.MistralConfig(**DECODER, sliding_window=4)),
    "gemma2": lambda: t.Gemma2ForCausalLM(
        t.Gemma2Config(**DECODER, sliding_window=4, query_pre_attn_scalar=8, attn_logit_softcapping=5.0)
    ),
    "gptoss": lambda: t.GptOssForCausalLM(
        t.GptOssConfig(**{**DECODER, "intermediate_size": 32}, sliding_window=4, num_local_experts=2, num_experts_per_tok=1)
    ),
    "opt": lambda: t.OPTForCausalLM(
        t.OPTConfig(**{**ENCODER, **IDS, "intermediate_size": None}, ffn_dim=37, word_embed_proj_dim=32)
    ),
    "marian": lambda: t.MarianMTModel(t.MarianConfig(**{**BART, "pad_token_id": 1, "decoder_start_token_id": 1})),
    "bart": lambda: t.BartForConditionalGeneration(t.BartConfig(**BART)),
    "t5": lambda: t.T5ForConditionalGeneration(t.T5Config(**T5)),
    "whisper": lambda: t.WhisperForConditionalGeneration(
        t.WhisperConfig(
            **{key: value for key, value in BART.items() if key not in ("max_position_embeddings", "forced_eos_token_id")},
            num_mel_bins=8,
            max_source_positions=10,
            max_target_positions=32,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    ),
}
"""Models that are converted."""

REFUSED: dict[str, Callable[[], nn.Module]] = {
    "bloom": lambda: t.BloomForCausalLM(t.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, **IDS)),
    "falcon": lambda: t.FalconForCausalLM(
        t.FalconConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, **IDS)
    ),
    "deberta": lambda: t.DebertaV2ForMaskedLM(
        t.DebertaV2Config(
            **{**ENCODER, "pad_token_id": 0}, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8
        )
    ),
    "longt5": lambda: t.LongT5ForConditionalGeneration(t.LongT5Config(**T5, local_radius=3)),
    "siglip": lambda: t.SiglipVisionModel(t.SiglipVisionConfig(**VISION)),
    "gptj": lambda: t.GPTJForCausalLM(
        t.GPTJConfig(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4, **IDS)
    ),
}
"""Models that are refused, at least in part."""


def tiny(name: str) -> Any:
    """Returns a model in evaluation mode; the same weights at every call."""
    torch.manual_seed(0)
    model = (MODELS | REFUSED)[name]().eval()
    for parameter in model.parameters():
        if (
            parameter.dim() > 1 and parameter.requires_grad and name != "t5"
        ):  # larger than at initialization, so that attention is not almost uniform
            parameter.data.mul_(4.0)
    return model
