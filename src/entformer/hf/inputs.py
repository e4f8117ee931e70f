"""A small input for a model of any family, made from its configuration."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

LENGTH, OTHER_LENGTH = 11, 7  # of encoder or decoder-only input, and of a decoder's: cross-attention shows by its lengths
SHIFTING = re.compile("SequenceClassification|QuestionAnswering")  # such models make the decoder's input themselves
SPECIAL = ("pad", "bos", "eos", "cls", "sep", "mask", "image", "video", "audio", "decoder_start", "vision_start", "vision_end")


def example_inputs(model: nn.Module) -> dict[str, Any]:
    """Returns keyword arguments with which the model can run: two examples, the second padded."""
    inner = _innermost(model)
    config: Any = inner.config
    names = _main_inputs(inner, config)
    device = next((parameter.device for parameter in inner.parameters()), torch.device("cpu"))
    dtype = next((p.dtype for p in inner.parameters() if p.is_floating_point()), torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        inputs: dict[str, Tensor] = {}
        for name in names:
            inputs |= {key: value.to(device) for key, value in _INPUTS[name](config).items()}
        if (token := _image_token(config)) is not None and "input_ids" in inputs:
            inputs |= _image_in_text(inner, config, inputs, token)
        shifts = SHIFTING.search(type(inner).__name__) or "decoder_input_ids" not in inspect.signature(inner.forward).parameters
        if getattr(config, "is_encoder_decoder", False) and not shifts:
            inputs["decoder_input_ids"] = _ids(_part(config, "decoder"), OTHER_LENGTH, end=False).to(device)
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}


def _innermost(model: nn.Module) -> nn.Module:
    """Returns the transformers model inside PEFT's wrappers."""
    get = getattr(model, "get_base_model", None)
    found: nn.Module = get() if callable(get) else model
    return found


def _main_inputs(model: nn.Module, config: Any) -> list[str]:
    main = str(getattr(model, "main_input_name", "input_ids"))
    names = [main if main in _INPUTS and _image_token(config) is None else "input_ids"]
    both = getattr(config, "text_config", None) is not None and getattr(config, "vision_config", None) is not None
    taken = inspect.signature(model.forward).parameters
    if both and _image_token(config) is None and {"input_ids", "pixel_values"} <= taken.keys():  # two towers, such as CLIP
        names = ["input_ids", "pixel_values"]
    return names


def _part(config: Any, *names: str) -> Any:
    return next((part for name in names if not isinstance(part := getattr(config, name, None), int | None)), config)


def _ids(config: Any, length: int, *, end: bool) -> Tensor:
    """Returns (2, length) token ids without special tokens, but for the end if the model has one."""
    config = _part(config, "text_config", "encoder") if not hasattr(config, "vocab_size") else config
    sizes = [getattr(part, "vocab_size", None) for part in (config, getattr(config, "text_config", None))]
    size = min((int(size) for size in sizes if size), default=32)
    special = {getattr(config, f"{name}_token_id", None) for name in SPECIAL}
    special |= {token for name in ("eos_token_id", "bos_token_id") for token in _listed(getattr(config, name, None))}
    allowed = torch.tensor([token for token in range(min(size, 4096)) if token not in special] or [0])
    ids = allowed[torch.randint(len(allowed), (2, length))]
    last = _listed(getattr(config, "eos_token_id", None))
    if end and last and 0 <= last[0] < size:
        ids[:, -1] = last[0]
        ids[1, -3] = last[0]
    return ids


def _listed(value: Any) -> list[int]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [int(value)]


def _text(config: Any) -> Mapping[str, Tensor]:
    ids = _ids(config, LENGTH, end=True)
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    pad = getattr(
        _part(config, "text_config", "encoder") if not hasattr(config, "vocab_size") else config, "pad_token_id", None
    )
    if pad is not None and pad >= 0:
        ids[1, -2:] = pad
    return {"input_ids": ids, "attention_mask": mask}


def _pixels(config: Any) -> Mapping[str, Tensor]:
    config = _part(config, "vision_config", "encoder", "backbone_config") if not hasattr(config, "image_size") else config
    size = getattr(config, "image_size", 32)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    frames = getattr(config, "num_frames", None)  # of a video
    shape = (int(getattr(config, "num_channels", 3)), height, width)
    return {"pixel_values": torch.randn(2, *(() if frames is None else (int(frames),)), *shape)}


def _image_token(config: Any) -> int | None:
    """Returns the token that stands for a part of an image in a text, None if the model reads no images in texts."""
    found = getattr(config, "image_token_id", None)
    found = getattr(config, "image_token_index", None) if found is None else found
    return found if isinstance(found, int) and getattr(config, "vision_config", None) is not None else None


def _image_in_text(model: nn.Module, config: Any, inputs: Mapping[str, Tensor], token: int) -> Mapping[str, Tensor]:
    """Returns inputs with an image at the beginning of each text, or none if the model takes images in another form."""
    get: Any = getattr(model, "get_image_features", None)
    pixels = _pixels(config)["pixel_values"].to(next(model.parameters()))
    for images in (pixels, pixels[:, None]):  # one image per text, or a list of images per text
        try:
            with torch.no_grad():
                found = get(pixel_values=images)
        except Exception:  # anything: other models want sizes, grids or patches; they run on text alone
            continue
        features = getattr(found, "pooler_output", found)
        parts = features if isinstance(features, list | tuple) else [features]
        count = sum(part.numel() // part.shape[-1] for part in parts) // len(pixels)
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        tokens = ids.new_full((len(ids), count), token)
        longer = {"input_ids": torch.cat((tokens, ids), 1), "attention_mask": torch.cat((torch.ones_like(tokens), mask), 1)}
        return {**longer, "pixel_values": images}
    return {}


def _features(config: Any) -> Mapping[str, Tensor]:
    """Returns the features of speech: (2, channels, frames) for Whisper, (2, frames, channels) for other models."""
    config = _part(config, "encoder") if not hasattr(config, "num_mel_bins") else config
    for name in ("feature_projection_input_dim", "input_feat_per_channel"):
        if (channels := getattr(config, name, None)) is not None:
            return {"input_features": torch.randn(2, 40, int(channels))}
    frames = 2 * int(getattr(config, "max_source_positions", 50) or 50)
    return {"input_features": torch.randn(2, int(getattr(config, "num_mel_bins", 80)), frames)}


def _waveform(config: Any) -> Mapping[str, Tensor]:
    """Returns samples of sound, or the spectrogram of a model that reads it like an image."""
    channels, frames = (getattr(config, name, None) for name in ("num_mel_bins", "max_length"))
    if channels is not None and frames is not None and hasattr(config, "frequency_stride"):
        return {"input_values": torch.randn(2, int(frames), int(channels))}
    return {"input_values": torch.randn(2, 4000)}


def _patches(config: Any) -> Mapping[str, Tensor]:
    """Returns patches with the number of their row and column in front, as Pix2Struct reads them."""
    config = _part(config, "vision_config")
    count = 9
    places = torch.stack((torch.arange(count) // 3, torch.arange(count) % 3), 1) + 1.0
    patches = torch.randn(2, count, int(getattr(config, "patch_embed_hidden_size", 768)))
    return {"flattened_patches": torch.cat((places.expand(2, -1, -1), patches), -1), "attention_mask": torch.ones(2, count)}


_INPUTS = {
    "input_ids": _text,
    "pixel_values": _pixels,
    "input_features": _features,
    "input_values": _waveform,
    "flattened_patches": _patches,
}
