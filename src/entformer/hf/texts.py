"""Texts as model inputs, for calibration and analysis."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError

Text = str | Sequence[int] | Tensor | tuple[str, str] | Mapping[str, Any]
"""A text; ids of tokens; a pair of source and target for an encoder-decoder; or keyword arguments of the model."""


def tokenizer_of(model: nn.Module, tokenizer: Any = None) -> Any:
    """Returns the given tokenizer, or loads the one that was saved with the model.

    Raises:
        ArgumentError: There is none.
    """
    if tokenizer is not None:
        return tokenizer
    import transformers

    path = str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")
    try:
        if path:
            return transformers.AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, KeyError) as err:
        raise ArgumentError(f"the tokenizer of the model cannot be loaded from {path} ({err}); pass tokenizer=.") from err
    raise ArgumentError("texts need a tokenizer; pass tokenizer=, or ids of tokens instead of text.")


def model_inputs(
    model: nn.Module,
    texts: Iterable[Text],
    *,
    tokenizer: Any = None,
    length: int = 512,
    max_tokens: int | None = None,
    warn_if_joined: bool = False,
) -> list[dict[str, Any]]:
    """Returns inputs of at most `length` tokens, one example each, without padding.

    A decoder-only model reads text cut into windows of `length` tokens; short texts are joined. Every other model reads each
    text by itself, truncated.

    Args:
        model: The model; tensors are placed on its device.
        texts: See `Text`.
        tokenizer: Of strings; by default the one saved with the model.
        length: Most tokens of an example.
        max_tokens: Stop after this many tokens.
        warn_if_joined: Emit a warning if texts are joined into windows more than twice as long.
    """
    inner = getattr(model, "get_base_model", lambda: model)()
    config: Any = inner.config
    device = next(inner.parameters()).device
    pairs, joins = bool(getattr(config, "is_encoder_decoder", False)), reads_windows(inner)
    found: list[dict[str, Any]] = []
    pending: list[int] = []
    joined: list[int] = []  # tokens of each text
    count = 0
    if isinstance(texts, str):
        texts = [texts]
    for text in texts:
        if max_tokens is not None and count >= max_tokens:
            break
        if isinstance(text, Mapping):
            found.append({key: value.to(device) if isinstance(value, Tensor) else value for key, value in text.items()})
            count += sum(value.numel() for key, value in found[-1].items() if key.endswith("input_ids"))
            continue
        if isinstance(text, str) or (isinstance(text, tuple) and isinstance(text[0], str)):
            tokenizer = tokenizer_of(inner, tokenizer)
        if pairs:
            if not isinstance(text, tuple) or len(text) != 2:
                raise ArgumentError(
                    "an encoder-decoder model needs pairs (source, target), or its keyword arguments as a dict."
                )
            source, target = (_ids(side, tokenizer, length) for side in text)
            start = getattr(config, "decoder_start_token_id", None)
            entry = {"input_ids": source, "decoder_input_ids": ([] if start is None else [int(start)]) + target[:-1]}
            found.append({key: torch.tensor([value], device=device) for key, value in entry.items()})
            count += len(source) + len(target)
            continue
        ids = _ids(text, tokenizer, None if joins else length)
        count += len(ids)
        if not joins:
            found.append({"input_ids": torch.tensor([ids], device=device)})
            continue
        pending += ids
        joined.append(len(ids))
        while len(pending) >= length:
            found.append({"input_ids": torch.tensor([pending[:length]], device=device)})
            pending = pending[length:]
            if max_tokens is not None and len(found) * length >= max_tokens:
                pending, max_tokens = [], 0
    if pending and (not found or len(pending) > 1):
        found.append({"input_ids": torch.tensor([pending], device=device)})
    if not found:
        raise ArgumentError("there is no text.")
    if warn_if_joined and joined:
        mean, longest = sum(joined) / len(joined), min(length, sum(joined))
        if 2.0 * mean < longest:
            warnings.warn(
                f"{len(joined)} texts with a mean length of {mean:.0f} tokens are joined into windows of {longest}; the "
                f"density is reached at this length, and shorter texts have a higher one. Pass length={max(joined)} to "
                f"calibrate at the length of these texts, or length={length} to omit this warning.",
                stacklevel=3,
            )
    return found


def reads_windows(model: Any) -> bool:
    """Returns whether the model is a decoder alone, which reads text as one stream."""
    return bool(getattr(model, "can_generate", lambda: False)()) and not getattr(model.config, "is_encoder_decoder", False)


def _ids(text: Any, tokenizer: Any, length: int | None) -> list[int]:
    if isinstance(text, Tensor):
        ids = text.flatten().tolist()
    elif isinstance(text, str):
        ids = tokenizer(text, truncation=length is not None, max_length=length)["input_ids"]
    else:
        ids = [int(token) for token in text]
    return list(ids if length is None else ids[:length])
