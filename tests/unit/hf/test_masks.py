"""Masks reach the fused kernel as causal limits, windows, padding and packed lengths, and mean what their elements mean."""

from typing import Any

import pytest
import torch
from torch import Tensor

from entformer import hf
from entformer.hf import function, masks
from entformer.hf.masks import Mask, boundaries, recognized

from .tiny_models import PAD, tiny

LENGTH = 40
PADDING = torch.ones(2, LENGTH, dtype=torch.bool)
PADDING[1, :7] = False
RIGHT = PADDING.flip(1)
STARTS = torch.tensor([0, 11, 25, LENGTH], dtype=torch.int32)


@pytest.mark.parametrize(
    "form",
    [
        Mask(causal=True),
        Mask(causal=True, keys=PADDING),
        Mask(causal=True, keys=RIGHT),
        Mask(causal=True, window=(5, 0)),
        Mask(causal=True, window=(5, 0), keys=PADDING),
        Mask(window=(3, 3)),
        Mask(keys=RIGHT),
        Mask(causal=True, packed=(STARTS, STARTS)),
    ],
)
def test_a_form_is_recognized(form: Mask) -> None:
    elements = form.dense(LENGTH, LENGTH, torch.device("cpu")).expand(-1, 1, LENGTH, LENGTH).contiguous()
    found = recognized(elements, STARTS if form.packed else None)
    assert found.elements is None
    assert (found.causal, found.window, found.packed is None) == (form.causal, form.window, form.packed is None)
    assert torch.equal(found.dense(LENGTH, LENGTH, elements.device).expand_as(elements), elements)
    assert torch.equal(found.counts(LENGTH, LENGTH, elements.device).expand(len(elements), 1, LENGTH), elements.sum(-1))
    assert recognized(elements, None) is found  # the next layer does not look again
    elements[0, 0, 9, 4] = ~elements[0, 0, 9, 4]
    assert recognized(elements, None).elements is elements


def test_keys_of_a_cache_are_an_offset() -> None:
    after_a_prefix = torch.ones(LENGTH, 60, dtype=torch.bool).tril(20)[None, None]
    assert recognized(after_a_prefix, None).arguments() == Mask(causal=True, offset=20).arguments()
    static = torch.zeros(1, 1, LENGTH, 60, dtype=torch.bool)  # its last keys are not filled yet
    static[..., :LENGTH] = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    found = recognized(static, None)
    assert torch.equal(found.dense(LENGTH, 60, static.device), static)
    assert (found.causal, found.offset, found.elements) == (True, 0, None)


def test_positions_that_restart_are_boundaries() -> None:
    positions = torch.cat([torch.arange(size) for size in (3, 2, 4)])[None]
    found = boundaries(positions, 9, 9)
    assert found is not None
    assert found.tolist() == [0, 3, 5, 9]
    assert boundaries(torch.arange(9)[None], 9, 9) is None


def inputs_of(case: str) -> dict[str, Tensor]:
    ids = torch.randint(3, 90, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    if case == "packed":
        positions = torch.cat([torch.arange(int(size)) for size in STARTS.diff()])[None]
        return {"input_ids": ids[:1], "position_ids": positions}
    mask = {"left": PADDING, "right": RIGHT}.get(case, torch.ones_like(PADDING))
    return {"input_ids": ids.masked_fill(~mask, PAD), "attention_mask": mask.long()}


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("llama", "left"),
        ("llama", "right"),
        ("llama", "packed"),
        ("bert", "right"),
        ("modernbert", "right"),
        ("mistral", "none"),
        ("qwen3", "left"),
        ("gemma2", "left"),
        ("gptoss", "left"),
    ],
)
def test_every_layer_takes_the_fused_path(name: str, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No elements of a mask are read and no scores materialized; gradients equal those of masks given by elements."""
    model = hf.sparsify(tiny(name), init=1.5)
    calls: list[dict[str, Any]] = []
    own = function.attention

    def recorded(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
        calls.append({**options, "mask": mask})
        return own(query, key, value, mask, impl="cpu", **options)  # raises where the kernel does not support the call

    def gradients() -> list[Tensor]:
        model.zero_grad()
        model(**inputs_of(case)).logits.square().mean().backward()
        return [p.grad for key, p in model.named_parameters() if "entmax_norm" in key]

    monkeypatch.setattr(function, "attention", recorded)
    fused = gradients()
    assert len(calls) == 2
    assert all(call["mask"] is None for call in calls)
    assert any(call.get("window") for call in calls) == (name in ("modernbert", "mistral", "gemma2", "gptoss"))
    assert all((call["softcap"] is not None) == (name == "gemma2") for call in calls)
    assert all((call["sinks"] is not None) == (name == "gptoss") for call in calls)
    assert all(("cu_seqlens_q" in call) == (case == "packed") for call in calls)
    monkeypatch.setattr(masks, "FEWEST_QUERIES", LENGTH + 1)
    for first, second in zip(fused, gradients(), strict=True):
        assert torch.allclose(first, second, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gptoss"])
def test_the_next_token_is_what_checked_arguments_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = hf.sparsify(tiny(name), alpha=1.5)
    for _, heads in hf.heads.sparse_heads(model):
        heads.set(alpha=torch.tensor([1.0, 1.2, 1.5, 2.0]), scale=0.7)
    ids = inputs_of("left")
    with torch.no_grad():
        expected = model(**ids).logits[:, -1]
        first = {key: value[:, :-1] for key, value in ids.items()}
        cache = model(**first, use_cache=True).past_key_values
        monkeypatch.setattr(function, "attention", None)  # is not called for one token
        found = model(ids["input_ids"][:, -1:], attention_mask=ids["attention_mask"], past_key_values=cache).logits[:, -1]
    assert torch.allclose(found, expected, atol=1e-5)


def test_values_kept_without_gradient_follow_the_parameters() -> None:
    heads = hf.SparseHeads(2)
    assert heads.without_gradient() == (1.0, None)
    heads.set(alpha=1.5, scale=0.5)
    alpha, scale = heads.without_gradient()
    assert isinstance(alpha, Tensor)
    assert isinstance(scale, Tensor)
    assert alpha.tolist() == [1.5, 1.5]
    assert heads.without_gradient()[0] is alpha
    heads.load_state_dict(hf.SparseHeads(2).state_dict())
    assert heads.without_gradient() == (1.0, None)
