"""At alpha = 1 a converted model computes what its own attention computes; above 1 it learns, and caches stay exact."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import StaticCache

from entformer import hf

from .tiny_models import MODELS, PAD, tiny

TOLERANCE = 1e-5
GENERATING = ["gpt2", "llama", "qwen3", "mistral", "gemma2", "gptoss", "opt", "marian", "bart", "t5"]
SEQ2SEQ = ("marian", "bart", "t5")


def inputs_of(model: Any, padding: str) -> tuple[dict[str, Tensor], Tensor | None]:
    """Returns inputs, and which output positions are real tokens (None: all)."""
    generator = torch.Generator().manual_seed(3)
    if model.main_input_name != "input_ids":
        shape = (2, 3, 16, 16) if model.main_input_name == "pixel_values" else (2, 8, 20)
        found = {model.main_input_name: torch.randn(shape, generator=generator)}
        if model.config.is_encoder_decoder:
            found["decoder_input_ids"] = torch.randint(3, 90, (2, 5), generator=generator)
        return found, None
    ids = torch.randint(3, 90, (2, 10), generator=generator)
    mask = torch.ones_like(ids)
    if padding != "none":
        hidden = slice(None, 4) if padding == "left" else slice(-4, None)
        ids[1, hidden], mask[1, hidden] = PAD, 0
    found = {"input_ids": ids, "attention_mask": mask}
    if model.config.is_encoder_decoder:
        found["decoder_input_ids"] = torch.randint(3, 90, (2, 6), generator=generator)
        return found, None
    if type(model).__name__ == "CLIPModel":
        found["pixel_values"] = torch.randn(2, 3, 16, 16, generator=generator)
        return found, None
    return found, mask.bool()


def outputs_of(model: Any, inputs: dict[str, Tensor], real: Tensor | None) -> Tensor:
    found = model(**inputs)
    output: Tensor = found.logits if "logits" in found else found.logits_per_image
    return output if real is None else output[real]


def relative(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().max() / second.abs().max())


@pytest.mark.parametrize("name", MODELS)
def test_alpha_1_is_the_own_attention(name: str) -> None:
    model = tiny(name)
    cases = [inputs_of(model, padding) for padding in ("none", "right", "left")]
    with torch.no_grad():
        own = [outputs_of(model, *case) for case in cases]
        hf.sparsify(model)
        for case, expected in zip(cases, own, strict=True):
            assert relative(outputs_of(model, *case), expected) < TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_alphas_and_scales_get_gradients_and_are_saved(name: str, tmp_path: Any) -> None:
    model = hf.sparsify(tiny(name), init=1.4)
    case = inputs_of(model, "left")
    outputs = outputs_of(model, *case)
    outputs.square().mean().backward()
    own = {key: parameter for key, parameter in model.named_parameters() if "entmax_norm" in key}
    assert len(own) == 2 * len(hf.alphas(model)) > 0
    for key, parameter in own.items():
        assert parameter.grad is not None, key
        assert torch.isfinite(parameter.grad).all(), key
        assert (parameter.grad != 0).any(), key
        with torch.no_grad():
            parameter.add_(torch.linspace(-0.1, 0.1, len(parameter)))
    with torch.no_grad():
        expected = outputs_of(model, *case)
        model.save_pretrained(tmp_path)
        again = hf.load(tmp_path)
        assert torch.equal(outputs_of(again, *case), expected)
    assert {key: value.tolist() for key, value in hf.alphas(again).items()} == {
        key: value.tolist() for key, value in hf.alphas(model).items()
    }


@pytest.mark.parametrize("name", ["bert", "albert", "gemma2", "clip", "t5"])
def test_densify_undoes_exactly(name: str) -> None:
    model = tiny(name)
    case = inputs_of(model, "right")
    keys, implementation = list(model.state_dict()), model.config._attn_implementation
    with torch.no_grad():
        expected = outputs_of(model, *case)
        hf.sparsify(model, alpha=1.5)
        assert not torch.equal(outputs_of(model, *case), expected)
        hf.densify(model)
        assert torch.equal(outputs_of(model, *case), expected)
    assert list(model.state_dict()) == keys
    assert model.config._attn_implementation == implementation
    assert not hasattr(model.config, "entformer")


def test_soft_capping_is_that_of_eager_attention_whatever_the_model_uses() -> None:
    model = tiny("gemma2")
    case = inputs_of(model, "left")
    with torch.no_grad():
        expected = outputs_of(model, *case)
        for part in model.modules():
            if hasattr(part, "config"):
                part.config._attn_implementation_internal = "flex_attention"
        hf.sparsify(model)
        assert relative(outputs_of(model, *case), expected) < TOLERANCE
    assert hf.densify(model).config._attn_implementation == "flex_attention"


def generate(model: Any, name: str, **options: Any) -> list[list[int]]:
    inputs, _ = inputs_of(model, "right" if name in SEQ2SEQ else "left")
    inputs.pop("decoder_input_ids", None)
    torch.manual_seed(5)
    settings = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, **options}
    found: list[list[int]] = model.generate(**inputs, **settings).tolist()
    return found


WAYS: list[dict[str, Any]] = [{}, {"use_cache": False}, {"num_beams": 3}, {"do_sample": True, "top_k": 5}]


@pytest.mark.parametrize("name", GENERATING)
def test_generation(name: str) -> None:
    model = tiny(name)
    ways = [*WAYS, {"cache_implementation": "static"}]
    own = [generate(model, name, **way) for way in ways]
    hf.sparsify(model)
    for way, expected in zip(ways, own, strict=True):
        assert generate(model, name, **way) == expected, way
    for _, heads in hf.heads.sparse_heads(model):
        heads.set(alpha=1.6, scale=0.8)
    assert (
        generate(model, name) == generate(model, name, use_cache=False) == generate(model, name, cache_implementation="static")
    )


def test_static_cache_is_filled_from_the_left() -> None:
    """Its first call passes keys that are not filled yet."""
    model = hf.sparsify(tiny("llama"), alpha=1.5)
    ids = torch.randint(3, 90, (1, 8))
    with torch.no_grad():
        expected = model(ids).logits
        cache = StaticCache(config=model.config, max_cache_len=16)
        assert relative(model(ids, past_key_values=cache).logits, expected) < TOLERANCE


def test_a_float_mask_is_a_mask_or_a_bias() -> None:
    model = hf.sparsify(tiny("llama"), alpha=1.5)
    ids = torch.randint(3, 90, (1, 8))
    lowest = torch.finfo(torch.float32).min
    mask = torch.full((8, 8), lowest).triu(1)[None, None]
    with torch.no_grad():
        assert relative(model(ids, attention_mask=mask).logits, model(ids).logits) < TOLERANCE
        biased = model(ids, attention_mask=torch.where(mask == 0, 0.1 * torch.arange(8.0), mask)).logits
        assert relative(biased, model(ids).logits) > 1e-3


@pytest.mark.parametrize("use_cache", [False, True])
def test_packed_sequences_do_not_attend_to_each_other(use_cache: bool) -> None:
    model = hf.sparsify(tiny("llama"), alpha=1.5)
    first, second = torch.randint(3, 90, (1, 5)), torch.randint(3, 90, (1, 4))
    positions = torch.cat((torch.arange(5), torch.arange(4)))[None]
    with torch.no_grad():
        packed = model(torch.cat((first, second), 1), position_ids=positions, use_cache=use_cache).logits
        apart = torch.cat((model(first).logits, model(second).logits), 1)
    assert relative(packed, apart) < TOLERANCE


@pytest.mark.parametrize("name", ["gpt2", "bert", "gemma2", "gptoss", "bart", "t5"])
def test_output_attentions_has_all_layers(name: str) -> None:
    model = tiny(name)
    case = inputs_of(model, "right")[0]
    model.set_attn_implementation("eager")
    with torch.no_grad():
        own = model(**case, output_attentions=True)
        hf.sparsify(model)
        found = model(**case, output_attentions=True)
    keys = [key for key in own if "attentions" in key]
    if not any(len(own[key]) for key in keys):
        pytest.skip("this version of transformers returns no attentions of this model")
    for key in keys:
        assert len(found[key]) == len(own[key])
        for layer, expected in zip(found[key], own[key], strict=True):
            assert torch.allclose(layer[0], expected[0], atol=1e-5)


def test_gradient_checkpointing_keeps_gradients() -> None:
    model = hf.sparsify(tiny("llama"), init=1.4).train()
    ids = torch.randint(3, 90, (2, 8))
    model(ids).logits.square().mean().backward()
    expected = {key: p.grad.clone() for key, p in model.named_parameters() if "entmax_norm" in key}
    model.zero_grad()
    model.gradient_checkpointing_enable()
    model(ids).logits.square().mean().backward()
    for key, parameter in model.named_parameters():
        if key in expected:
            assert torch.allclose(parameter.grad, expected[key], rtol=1e-5)


@pytest.mark.slow
def test_a_compiled_model_is_the_same() -> None:
    model = hf.sparsify(tiny("llama"), alpha=1.5)
    ids = torch.randint(3, 90, (2, 8))
    with torch.no_grad():
        expected = model(ids).logits
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        assert relative(compiled(ids).logits, expected) < TOLERANCE
