"""What cannot be converted, loaded or called is refused with the reason, and the model is left as it was."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from entformer import hf
from entformer.errors import ArgumentError, DataError

from .tiny_models import REFUSED, tiny

MODULES = {
    "bloom": "BloomAttention",
    "falcon": "FalconAttention",
    "deberta": "DisentangledSelfAttention",
    "longt5": "LongT5LocalAttention",
    "siglip": "MultiheadAttention",
    "gptj": "GPTJAttention",
    "xlnet": "XLNetRelativeAttention",
    "codegen": "CodeGenAttention",
    "mpt": "MptAttention",
    "xglm": "XGLMAttention",
    "roformer": "RoFormerSelfAttention",
    "bigbird": "BigBirdAttention",
    "led": "LEDEncoderSelfAttention",
    "prophetnet": "ProphetNetAttention",
    "nllb_moe": "at alpha = 1 its outputs differ",  # its experts are chosen by the form of the mask
    "minimax": "MiniMaxLightningAttention does not call the attention interface",
    "wavlm": "WavLMAttention",
    "swinv2": "Swinv2SelfAttention",
    "mamba": "none of its modules calls the attention interface",
    "qwen2_vl": "VisionAttention is not used on the example input; pass example_inputs",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_keeps_softmax_is_refused(name: str) -> None:
    model = tiny(name)
    keys, implementation = list(model.state_dict()), model.config._attn_implementation
    with pytest.raises(hf.UnsupportedModel, match="cannot be made sparse") as caught:
        hf.sparsify(model)
    assert any(MODULES[name] in reason for reason in caught.value.reasons)
    assert list(model.state_dict()) == keys
    assert model.config._attn_implementation == implementation


@pytest.mark.parametrize("given", ["bert-base-uncased", torch.nn.Linear(2, 2), torch.nn.TransformerEncoderLayer(8, 2)])
def test_what_is_no_model_of_transformers_is_refused_with_advice(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"takes a model of transformers, not \w+: .*MultiheadAttention\.convert"):
        hf.sparsify(given)


def test_images_in_a_form_of_its_own_are_given_as_an_example() -> None:
    model = tiny("qwen2_vl")
    ids = torch.tensor([[5, 92, 90, 90, 90, 90, 93, 6, 7, 8]])
    inputs = {"input_ids": ids, "mm_token_type_ids": (ids == 90).long(), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    inputs["pixel_values"] = torch.randn(16, 3 * 2 * 4 * 4)
    with torch.no_grad():
        expected = model(**inputs).logits
        hf.sparsify(model, example_inputs=inputs)
        torch.testing.assert_close(model(**inputs).logits, expected, rtol=1e-5, atol=1e-5)
    assert sum("visual" in name for name in hf.alphas(model)) == 2
    assert hf.alphas(hf.sparsify(tiny("qwen2_vl"), allow_partial=True)).keys() < hf.alphas(model).keys()


def test_part_of_a_model_is_converted_on_request() -> None:
    model = hf.sparsify(tiny("longt5"), allow_partial=True)
    assert not any("LocalSelfAttention" in name for name in hf.alphas(model))
    assert len(hf.alphas(model)) == 4
    with pytest.raises(hf.UnsupportedModel):  # nothing at all is covered
        hf.sparsify(tiny("bloom"), allow_partial=True)


@pytest.mark.parametrize("keyword", ["indices", "block_indices", "cache"])
def test_a_keyword_that_would_change_the_result_is_refused(keyword: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny("llama")
    attention = model.model.layers[1].self_attn
    own = attention.forward
    monkeypatch.setattr(attention, "forward", lambda *args, **more: own(*args, **more, **{keyword: torch.zeros(1)}))
    with pytest.raises(hf.UnsupportedModel, match=f"passes {keyword}"):
        hf.sparsify(model)


def test_a_model_that_fails_on_the_example_names_the_argument() -> None:
    with pytest.raises(hf.UnsupportedModel, match="example_inputs"):
        hf.sparsify(tiny("llama"), example_inputs={"input_ids": torch.tensor([[10_000]])})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"normalizer": "rela"}, "not known; choose one of entmax"),
        ({"normalizer": "sparsemax", "alpha": 1.5}, "fixed alpha of 2"),
        ({"alpha": "learnt"}, "not known"),
        ({"alpha": 0.5}, "between 1"),
        ({"init": 3.0}, "between 1"),
        ({"kinds": "self"}, "choose from encoder"),
        ({"kinds": "cross"}, "select none"),
        ({"layers": [7]}, "select none"),
        ({"alpha": "calibrated"}, "texts"),
        ({"texts": ["a"]}, "calibrated"),
    ],
)
def test_arguments(arguments: dict[str, Any], message: str) -> None:
    model = tiny("llama")
    with pytest.raises(ArgumentError, match=message):
        hf.sparsify(model, **arguments)
    assert not hf.alphas(model)


def test_twice_or_never_is_refused() -> None:
    model = tiny("llama")
    with pytest.raises(ArgumentError, match="no alphas"):
        hf.densify(model)
    with pytest.raises(ArgumentError, match="sparsify"):
        hf.parameter_groups(model, lr=1e-3)
    hf.sparsify(model)
    with pytest.raises(ArgumentError, match="already"):
        hf.sparsify(model)


def test_a_saved_model_loaded_without_its_alphas_says_so(tmp_path: Path) -> None:
    hf.sparsify(tiny("llama"), alpha=1.5).save_pretrained(tmp_path)
    dense = transformers.LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation=hf.register())
    with pytest.raises(ArgumentError, match=r"entformer\.hf\.load"):
        dense(torch.tensor([[3, 4, 5]]))
    hf.densify(dense)
    dense(torch.tensor([[3, 4, 5]]))


def test_load_names_what_is_wrong_with_a_directory(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        hf.load(tmp_path)
    tiny("llama").save_pretrained(tmp_path)
    with pytest.raises(DataError, match="not a converted model"):
        hf.load(tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    config["entformer"] = {"version": "0", "modules": {"model.layers.0.self_attn": {"heads": 4}}}
    file.write_text(json.dumps(config))
    with pytest.raises(DataError, match="saved without alphas"):
        hf.load(tmp_path)
    config["entformer"]["modules"] = {"model.layers.9.self_attn": {"heads": 4}}
    file.write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"no module model\.layers\.9"):
        hf.load(tmp_path)


def test_a_name_that_is_taken_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(transformers.AttentionInterface._global_mapping, "entformer", lambda *_: None)
    with pytest.raises(ArgumentError, match="another attention function"):
        hf.register()
