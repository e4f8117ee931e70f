"""Which modules are converted, what is stored, and how it sits beside other models, optimizers and dtypes."""

import copy
from pathlib import Path

import pytest
import torch
import transformers as t
from transformers.trainer_pt_utils import get_parameter_names

from entformer import hf
from entformer.hf.inputs import example_inputs

from .tiny_models import DECODER, OTHERS, tiny


def kinds_of(model: t.PreTrainedModel) -> list[tuple[str, int]]:
    return [(entry["kind"], entry["layer"]) for entry in model.config.entformer["modules"].values()]


def test_kinds_and_layers_select_modules() -> None:
    every = [("encoder", 0), ("encoder", 1), ("decoder", 0), ("cross", 0), ("decoder", 1), ("cross", 1)]
    for name in ("bart", "t5", "whisper"):
        assert kinds_of(hf.sparsify(tiny(name))) == every
    assert kinds_of(hf.sparsify(tiny("marian"), kinds="cross")) == [("cross", 0), ("cross", 1)]
    assert kinds_of(hf.sparsify(tiny("marian"), kinds=("encoder", "decoder"), layers=[1])) == [("encoder", 1), ("decoder", 1)]
    towers = {entry["kind"] for name, entry in hf.sparsify(tiny("clip")).config.entformer["modules"].items() if "text" in name}
    assert towers == {"decoder"}  # causal; the other tower is an encoder


def test_kinds_of_modules_that_declare_nothing() -> None:
    assert kinds_of(hf.sparsify(tiny("doge"))) == [("decoder", 0), ("decoder", 1)]  # the causal limit is in the mask
    assert kinds_of(hf.sparsify(tiny("segformer"))) == [("encoder", 0), ("encoder", 1)]  # fewer keys than queries


@pytest.mark.parametrize("name", OTHERS)
def test_further_families_are_converted_saved_and_restored(name: str, tmp_path: Path) -> None:
    model = tiny(name)
    inputs = example_inputs(model)
    with torch.no_grad():
        expected = next(iter(model(**inputs).values()))
    hf.sparsify(model)
    with torch.no_grad():
        found = next(iter(model(**inputs).values()))[0]  # the other example has padding
        torch.testing.assert_close(found, expected[0], rtol=0.0, atol=1e-5 * float(expected[0].abs().max()))
    for _, heads in hf.heads.sparse_heads(model):
        heads.set(alpha=1.4)
    next(iter(model(**inputs).values())).square().mean().backward()
    for key, parameter in model.named_parameters():
        if "entmax_norm" in key:
            assert parameter.grad is not None, key
            assert torch.isfinite(parameter.grad).all(), key
            assert (parameter.grad != 0).any(), key
    with torch.no_grad():
        for _, heads in hf.heads.sparse_heads(model):
            heads.set(alpha=torch.linspace(1.2, 1.6, heads.num_heads), scale=torch.linspace(0.8, 1.1, heads.num_heads))
        sparse = next(iter(model(**inputs).values()))
        model.save_pretrained(tmp_path)
        assert torch.equal(next(iter(hf.load(tmp_path)(**inputs).values())), sparse)
    hf.densify(model)
    with torch.no_grad():
        assert torch.equal(next(iter(model(**inputs).values())), expected)


def test_modules_left_out_keep_softmax_through_saving(tmp_path: Path) -> None:
    model = hf.sparsify(tiny("marian"), alpha=1.5, kinds="cross")
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]]), "decoder_input_ids": torch.tensor([[5, 6]])}
    with torch.no_grad():
        expected = model(**inputs).logits
        model.save_pretrained(tmp_path)
        again = hf.load(tmp_path)
        assert torch.equal(again(**inputs).logits, expected)
    assert not any(heads.learned for _, heads in hf.heads.sparse_heads(again))
    assert hf.alphas(again).keys() == hf.alphas(model).keys()


def test_one_configuration_of_two_models_switches_one() -> None:
    config = t.LlamaConfig(**DECODER)
    first, second = t.LlamaForCausalLM(config), t.LlamaForCausalLM(config)
    hf.sparsify(first, alpha=1.5)
    assert second.config._attn_implementation == config._attn_implementation != "entformer"
    assert not hasattr(second.config, "entformer")


def test_parts_of_a_configuration_stay_shared_inside_the_model() -> None:
    model = hf.sparsify(tiny("clip"))
    assert model.config.text_config is model.text_model.config
    assert model.config.vision_config._attn_implementation == "entformer"


def test_a_copy_is_independent() -> None:
    model = hf.sparsify(tiny("llama"), alpha=1.5)
    other = copy.deepcopy(model)
    hf.densify(other)
    assert hf.alphas(model)
    assert model.config._attn_implementation == "entformer" != other.config._attn_implementation


def test_normalizers_have_fixed_alphas() -> None:
    for normalizer, alpha in {"softmax": 1.0, "entmax15": 1.5, "sparsemax": 2.0}.items():
        model = hf.sparsify(tiny("llama"), normalizer=normalizer)
        assert {float(value) for values in hf.alphas(model).values() for value in values} == {alpha}
        assert not any(heads.learned for _, heads in hf.heads.sparse_heads(model))


def test_alphas_and_scales_are_not_decayed() -> None:
    model = hf.sparsify(tiny("bert"))
    trainer = t.Trainer.get_decay_parameter_names
    assert not any("entmax_norm" in name for name in trainer(None, model))  # type: ignore[arg-type]
    groups = hf.parameter_groups(model, lr=1e-4, weight_decay=0.1)
    own = {id(p) for name, p in model.named_parameters() if "entmax_norm" in name}
    assert {id(p) for p in groups[-1]["params"]} == own
    assert groups[-1]["weight_decay"] == 0.0
    assert groups[-1]["lr"] == 1e-3
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_half_precision_resolves_alphas_close_to_softmax() -> None:
    model = hf.sparsify(tiny("llama"))
    for _, heads in hf.heads.sparse_heads(model):
        heads.set(alpha=1.03, scale=0.37)
    model.to(torch.bfloat16)
    alpha, scale = hf.alphas(model)["model.layers.0.self_attn"], hf.scales(model)["model.layers.0.self_attn"]
    assert alpha.dtype == torch.float32
    assert alpha.tolist() == pytest.approx([1.03] * 4, abs=2e-4)
    assert scale.tolist() == pytest.approx([0.37] * 4, rel=5e-3)
    assert model(torch.tensor([[3, 4, 5]])).logits.dtype == torch.bfloat16


def test_loading_in_half_precision_keeps_alphas_in_float32(tmp_path: Path) -> None:
    model = hf.sparsify(tiny("llama"))
    for _, heads in hf.heads.sparse_heads(model):
        heads.set(alpha=1.2345, scale=0.777)
    model.save_pretrained(tmp_path)
    again = hf.load(tmp_path, dtype=torch.bfloat16)
    assert again.lm_head.weight.dtype == torch.bfloat16
    for name, values in hf.alphas(model).items():
        assert torch.equal(hf.alphas(again)[name], values)
        assert torch.equal(hf.scales(again)[name], hf.scales(model)[name])


def test_sharded_weights_load(tmp_path: Path) -> None:
    model = hf.sparsify(tiny("llama"), alpha=1.5)
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert (tmp_path / "model.safetensors.index.json").is_file()
    ids = torch.tensor([[3, 4, 5, 6]])
    with torch.no_grad():
        assert torch.equal(hf.load(tmp_path)(ids).logits, model(ids).logits)


def test_encoder_decoder_composites() -> None:
    torch.manual_seed(0)
    small = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 37}
    encoder = t.BertModel(t.BertConfig(**small))
    decoder = t.GPT2LMHeadModel(t.GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=4, add_cross_attention=True))
    model = t.EncoderDecoderModel(encoder=encoder, decoder=decoder).eval()
    assert kinds_of(hf.sparsify(model)) == [("encoder", 0), ("decoder", 0), ("cross", 0)]
    assert get_parameter_names(model, [])
