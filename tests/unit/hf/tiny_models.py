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
EAGER = {"attn_implementation": "eager"}  # in transformers 5.15 sdpa leaves out soft-capping
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
NO_LIMIT = {key: value for key, value in BART.items() if key not in ("max_position_embeddings", "forced_eos_token_id")}
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
        t.Gemma2Config(**DECODER, sliding_window=4, query_pre_attn_scalar=8, attn_logit_softcapping=5.0, **EAGER)
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
            **NO_LIMIT,
            num_mel_bins=8,
            max_source_positions=10,
            max_target_positions=32,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        )
    ),
}
"""Models that are converted."""

NO_HEAD_SIZE = {key: value for key, value in DECODER.items() if key != "head_dim"}
EXPERTS = {**DECODER, "intermediate_size": 32, "num_experts_per_tok": 1}
SPEECH = {"vocab_size": 32, "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_conv_pos_embeddings": 4}
SPEECH |= {key: VISION[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
LATENT = {"kv_lora_rank": 8, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
LATENT |= {
    "n_routed_experts": 4,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}

LAYERS_AND_HEADS = {"num_hidden_layers": 2, "num_attention_heads": 4}
LINEAR = {"num_experts": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
LINEAR |= {"layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2, "linear_num_value_heads": 2}
LINEAR |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8}
SHARED = {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2, "sliding_window": 4}
SHARED |= {"vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8, "laurel_rank": 4}
SHARED |= {"activation_sparsity_pattern": None}
PATCHES = {"d_kv": 8, "d_ff": 37, "hidden_size": 32}
SPECTROGRAM = {"max_length": 16, "num_mel_bins": 16, "frequency_stride": 4, "time_stride": 4, "patch_size": 4}
STATE = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8}
GEMMA = {**DECODER, "sliding_window": 4, "query_pre_attn_scalar": 8, "attn_logit_softcapping": None}

OTHERS: dict[str, Callable[[], nn.Module]] = {
    "phi3": lambda: t.Phi3ForCausalLM(t.Phi3Config(**NO_HEAD_SIZE)),
    "phi": lambda: t.PhiForCausalLM(t.PhiConfig(**NO_HEAD_SIZE)),
    "qwen2": lambda: t.Qwen2ForCausalLM(t.Qwen2Config(**NO_HEAD_SIZE)),
    "olmo2": lambda: t.Olmo2ForCausalLM(t.Olmo2Config(**DECODER)),
    "cohere": lambda: t.CohereForCausalLM(t.CohereConfig(**DECODER)),
    "stablelm": lambda: t.StableLmForCausalLM(t.StableLmConfig(**DECODER)),
    "smollm3": lambda: t.SmolLM3ForCausalLM(t.SmolLM3Config(**DECODER)),
    "granite": lambda: t.GraniteForCausalLM(t.GraniteConfig(**DECODER)),
    "gemma3": lambda: t.Gemma3ForCausalLM(t.Gemma3TextConfig(**DECODER, sliding_window=4, query_pre_attn_scalar=8)),
    "mixtral": lambda: t.MixtralForCausalLM(t.MixtralConfig(**EXPERTS, num_local_experts=2)),
    "llama4": lambda: t.Llama4ForCausalLM(
        t.Llama4TextConfig(**EXPERTS, intermediate_size_mlp=32, num_local_experts=2, attention_chunk_size=4)
    ),
    "deepseek_v3": lambda: t.DeepseekV3ForCausalLM(t.DeepseekV3Config(**{**NO_HEAD_SIZE, "num_key_value_heads": 4}, **LATENT)),
    "gpt_neox": lambda: t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**{**ENCODER, **IDS})),
    "electra": lambda: t.ElectraForMaskedLM(t.ElectraConfig(**ENCODER, embedding_size=16)),
    "esm": lambda: t.EsmForMaskedLM(t.EsmConfig(**ENCODER, mask_token_id=4, position_embedding_type="rotary")),
    "mbart": lambda: t.MBartForConditionalGeneration(t.MBartConfig(**BART)),
    "pegasus": lambda: t.PegasusForConditionalGeneration(t.PegasusConfig(**BART)),
    "blenderbot": lambda: t.BlenderbotForConditionalGeneration(t.BlenderbotConfig(**BART)),
    "m2m100": lambda: t.M2M100ForConditionalGeneration(t.M2M100Config(**BART)),
    "umt5": lambda: t.UMT5ForConditionalGeneration(t.UMT5Config(**T5)),
    "deit": lambda: t.DeiTForImageClassification(t.DeiTConfig(**VISION)),
    "dinov2": lambda: t.Dinov2Model(t.Dinov2Config(**VISION)),
    "wav2vec2": lambda: t.Wav2Vec2Model(t.Wav2Vec2Config(**SPEECH, num_conv_pos_embedding_groups=2)),
    "xlm_roberta": lambda: t.XLMRobertaForTokenClassification(t.XLMRobertaConfig(**ENCODER)),
    "qwen3_moe": lambda: t.Qwen3MoeForCausalLM(t.Qwen3MoeConfig(**EXPERTS, num_experts=2, moe_intermediate_size=16)),
    "qwen3_next": lambda: t.Qwen3NextForCausalLM(t.Qwen3NextConfig(**EXPERTS, **LINEAR)),
    "glm4": lambda: t.Glm4ForCausalLM(t.Glm4Config(**DECODER)),
    "gemma3n": lambda: t.Gemma3nForCausalLM(t.Gemma3nTextConfig(**{**DECODER, "num_hidden_layers": 4}, **SHARED)),
    "t5gemma": lambda: t.T5GemmaForConditionalGeneration(t.T5GemmaConfig(encoder=GEMMA, decoder=GEMMA, vocab_size=VOCAB)),
    "moonshine": lambda: t.MoonshineForConditionalGeneration(
        t.MoonshineConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            intermediate_size=37,
            **{f"{part}_{what}": count for part in ("encoder", "decoder") for what, count in LAYERS_AND_HEADS.items()},
            **{**IDS, "decoder_start_token_id": 0},
        )
    ),
    "swin": lambda: t.SwinModel(
        t.SwinConfig(image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=2)
    ),
    "videomae": lambda: t.VideoMAEModel(t.VideoMAEConfig(**VISION, num_frames=4)),
    "llava": lambda: t.LlavaForConditionalGeneration(
        t.LlavaConfig(
            text_config=t.LlamaConfig(**DECODER),
            vision_config=t.CLIPVisionConfig(**VISION),
            image_token_index=90,
            vision_feature_layer=-1,
        )
    ),
    "idefics3": lambda: t.Idefics3ForConditionalGeneration(
        t.Idefics3Config(text_config=t.LlamaConfig(**DECODER), vision_config=VISION, image_token_id=90, scale_factor=2)
    ),
    "paligemma": lambda: t.PaliGemmaForConditionalGeneration(
        t.PaliGemmaConfig(
            text_config=t.GemmaConfig(**DECODER),
            vision_config=t.SiglipVisionConfig(**VISION, vision_use_head=False),
            image_token_index=90,
            projection_dim=32,
            hidden_size=32,
        )
    ),
    "starcoder2": lambda: t.Starcoder2ForCausalLM(t.Starcoder2Config(**NO_HEAD_SIZE)),
    "nemotron": lambda: t.NemotronForCausalLM(t.NemotronConfig(**DECODER)),
    "persimmon": lambda: t.PersimmonForCausalLM(t.PersimmonConfig(**{**ENCODER, **IDS})),
    "olmo": lambda: t.OlmoForCausalLM(t.OlmoConfig(**NO_HEAD_SIZE)),
    "olmo3": lambda: t.Olmo3ForCausalLM(t.Olmo3Config(**NO_HEAD_SIZE, sliding_window=4)),
    "olmoe": lambda: t.OlmoeForCausalLM(
        t.OlmoeConfig(**{**NO_HEAD_SIZE, "intermediate_size": 16}, num_experts=4, num_experts_per_tok=2)
    ),
    "ernie": lambda: t.ErnieForMaskedLM(t.ErnieConfig(**ENCODER)),
    "ernie4_5": lambda: t.Ernie4_5ForCausalLM(t.Ernie4_5Config(**DECODER)),
    "nomic_bert": lambda: t.NomicBertForMaskedLM(t.NomicBertConfig(**ENCODER)),
    "eurobert": lambda: t.EuroBertForMaskedLM(t.EuroBertConfig(**NO_HEAD_SIZE)),
    "camembert": lambda: t.CamembertForMaskedLM(t.CamembertConfig(**ENCODER)),
    "data2vec_text": lambda: t.Data2VecTextForMaskedLM(t.Data2VecTextConfig(**ENCODER)),
    "biogpt": lambda: t.BioGptForCausalLM(t.BioGptConfig(**ENCODER)),
    "gpt_bigcode": lambda: t.GPTBigCodeForCausalLM(
        t.GPTBigCodeConfig(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, **IDS)
    ),
    "ctrl": lambda: t.CTRLLMHeadModel(t.CTRLConfig(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, dff=37, n_positions=64)),
    "cohere2": lambda: t.Cohere2ForCausalLM(t.Cohere2Config(**NO_HEAD_SIZE, sliding_window=4)),
    "exaone4": lambda: t.Exaone4ForCausalLM(t.Exaone4Config(**NO_HEAD_SIZE, sliding_window=4)),
    "deepseek_v2": lambda: t.DeepseekV2ForCausalLM(t.DeepseekV2Config(**{**NO_HEAD_SIZE, "num_key_value_heads": 4}, **LATENT)),
    "diffllama": lambda: t.DiffLlamaForCausalLM(t.DiffLlamaConfig(**DECODER)),
    "doge": lambda: t.DogeForCausalLM(t.DogeConfig(**NO_HEAD_SIZE, keep_window_size=8)),
    "falcon_h1": lambda: t.FalconH1ForCausalLM(t.FalconH1Config(**DECODER, **STATE, mamba_d_ssm=64)),
    "bamba": lambda: t.BambaForCausalLM(t.BambaConfig(**NO_HEAD_SIZE, **STATE, attn_layer_indices=[1])),
    "lfm2": lambda: t.Lfm2ForCausalLM(t.Lfm2Config(**NO_HEAD_SIZE, layer_types=["conv", "full_attention"])),
    "mt5": lambda: t.MT5ForConditionalGeneration(t.MT5Config(**T5)),
    "plbart": lambda: t.PLBartForConditionalGeneration(t.PLBartConfig(**BART)),
    "pix2struct": lambda: t.Pix2StructForConditionalGeneration(
        t.Pix2StructConfig(
            text_config={**PATCHES, "vocab_size": VOCAB, "num_layers": 2, "num_heads": 4, "eos_token_id": 2},
            vision_config={**PATCHES, **LAYERS_AND_HEADS, "patch_embed_hidden_size": 48, "seq_len": 16},
        )
    ),
    "siglip_text": lambda: t.SiglipTextModel(t.SiglipTextConfig(**{**ENCODER, **IDS})),
    "chinese_clip": lambda: t.ChineseCLIPModel(
        t.ChineseCLIPConfig(text_config=ENCODER, vision_config=VISION, projection_dim=16)
    ),
    "dinov3": lambda: t.DINOv3ViTModel(t.DINOv3ViTConfig(**VISION)),
    "beit": lambda: t.BeitModel(t.BeitConfig(**VISION)),
    "segformer": lambda: t.SegformerModel(
        t.SegformerConfig(
            num_encoder_blocks=2,
            depths=[1, 1],
            sr_ratios=[2, 1],
            hidden_sizes=[16, 32],
            patch_sizes=[3, 3],
            strides=[2, 2],
            num_attention_heads=[2, 4],
            mlp_ratios=[2, 2],
        )
    ),
    "hubert": lambda: t.HubertModel(t.HubertConfig(**SPEECH, num_conv_pos_embedding_groups=2)),
    "wav2vec2_bert": lambda: t.Wav2Vec2BertModel(
        t.Wav2Vec2BertConfig(
            **LAYERS_AND_HEADS,
            hidden_size=32,
            intermediate_size=37,
            feature_projection_input_dim=16,
            conv_depthwise_kernel_size=3,
        )
    ),
    "ast": lambda: t.ASTModel(t.ASTConfig(hidden_size=32, intermediate_size=37, **LAYERS_AND_HEADS, **SPECTROGRAM)),
    "speech_to_text": lambda: t.Speech2TextForConditionalGeneration(
        t.Speech2TextConfig(
            **NO_LIMIT,
            num_conv_layers=2,
            conv_kernel_sizes=(3, 3),
            conv_channels=16,
            input_feat_per_channel=8,
            max_source_positions=40,
            max_target_positions=32,
        )
    ),
}
"""Further models that are converted; the tests run them once."""

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
    "xlnet": lambda: t.XLNetLMHeadModel(t.XLNetConfig(vocab_size=VOCAB, d_model=32, n_layer=2, n_head=4, d_inner=37)),
    "codegen": lambda: t.CodeGenForCausalLM(
        t.CodeGenConfig(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64, rotary_dim=4)
    ),
    "mpt": lambda: t.MptForCausalLM(t.MptConfig(vocab_size=VOCAB, d_model=32, n_heads=4, n_layers=2, max_seq_len=64)),
    "xglm": lambda: t.XGLMForCausalLM(
        t.XGLMConfig(vocab_size=VOCAB, d_model=32, ffn_dim=37, num_layers=2, attention_heads=4, max_position_embeddings=64)
    ),
    "roformer": lambda: t.RoFormerForMaskedLM(t.RoFormerConfig(**ENCODER, embedding_size=32)),
    "bigbird": lambda: t.BigBirdForMaskedLM(t.BigBirdConfig(**ENCODER, block_size=4, num_random_blocks=1)),
    "led": lambda: t.LEDForConditionalGeneration(
        t.LEDConfig(**NO_LIMIT, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64, attention_window=4)
    ),
    "prophetnet": lambda: t.ProphetNetForConditionalGeneration(
        t.ProphetNetConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            **{f"num_{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")},
            encoder_ffn_dim=37,
            decoder_ffn_dim=37,
            max_position_embeddings=64,
        )
    ),
    "nllb_moe": lambda: t.NllbMoeForConditionalGeneration(
        t.NllbMoeConfig(**BART, num_experts=2, encoder_sparse_step=2, decoder_sparse_step=2)
    ),
    "minimax": lambda: t.MiniMaxForCausalLM(
        t.MiniMaxConfig(**{**DECODER, "intermediate_size": 32}, num_local_experts=2, num_experts_per_tok=1, block_size=4)
    ),
    "wavlm": lambda: t.WavLMModel(t.WavLMConfig(**SPEECH, num_conv_pos_embedding_groups=2)),
    "swinv2": lambda: t.Swinv2Model(
        t.Swinv2Config(image_size=32, patch_size=4, embed_dim=16, depths=[1, 1], num_heads=[2, 4], window_size=2)
    ),
    "mamba": lambda: t.MambaForCausalLM(t.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=1, state_size=4)),
    "qwen2_vl": lambda: t.Qwen2VLForConditionalGeneration(
        t.Qwen2VLConfig(
            text_config={**NO_HEAD_SIZE, "rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]}},
            vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 4, "mlp_ratio": 2, "patch_size": 4},
            image_token_id=90,
            video_token_id=91,
            vision_start_token_id=92,
            vision_end_token_id=93,
        )
    ),
}
"""Models that are refused, at least in part; Qwen2-VL for want of an example with an image."""


def tiny(name: str) -> Any:
    """Returns a model in evaluation mode; the same weights at every call."""
    torch.manual_seed(0)
    model = (MODELS | OTHERS | REFUSED)[name]().eval()
    for parameter in model.parameters():
        if (
            parameter.dim() > 1 and parameter.requires_grad and name != "t5"
        ):  # larger than at initialization, so that attention is not almost uniform
            parameter.data.mul_(4.0)
    return model
