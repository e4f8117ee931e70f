"""`ef.trace_attention`: the heads of a model with attention of torch or ours, as `ef.show` shows them."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import entformer as ef
from entformer.errors import ArgumentError

WIDTH, HEADS, LENGTH = 16, 2, 5
TOKENS = ["the", "cat", "sat", "down", "here"]


def make_encoder(**options: float) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True, **options)  # type: ignore[arg-type]
    return nn.TransformerEncoder(layer, 2)


def inputs(batch: int = 3) -> Tensor:
    return torch.randn(batch, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_torch_and_converted_layers_are_recorded_alike(training: bool) -> None:
    theirs = make_encoder(dropout=0.0).train(training)
    ours = ef.MultiheadAttention.convert(copy.deepcopy(theirs), normalizer="softmax")
    x = inputs()
    layer = theirs.layers[0].self_attn
    _, want = layer(x, x, x, average_attn_weights=False)
    found = []
    for model in (theirs, ours):
        before = model(x)
        with ef.trace_attention(model) as traces:
            torch.testing.assert_close(model(x), before, atol=1e-5, rtol=1e-5)
        assert list(traces) == ["layers.0.self_attn", "layers.1.self_attn"]
        view = ef.show(traces, TOKENS, batch=2)
        found.append([rows.dense() for rows in view.panels[0].heads])
        assert view.panels[0].queries == ("▁the", "▁cat", "▁sat", "▁down", "▁here")
        assert "Sequence 2 of a batch of 3" in repr(view)
    for heads in found:
        np.testing.assert_allclose(heads, want[2].detach(), atol=1e-6)


def test_hooks_and_the_fast_path_are_restored() -> None:
    model = make_encoder().eval()
    ours = ef.MultiheadAttention.convert(copy.deepcopy(model))
    calls: list[ef.AttentionTrace] = []
    ours.layers[0].self_attn.hook = calls.append
    enabled = torch.backends.mha.get_fastpath_enabled()
    with ef.trace_attention(ours) as traces, ef.trace_attention(model):
        ours(inputs())
        assert not torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.mha.get_fastpath_enabled() == enabled
    assert len(calls) == len(traces["layers.0.self_attn"]) == 1
    ours(inputs())
    assert len(calls) == 2
    assert len(traces["layers.0.self_attn"]) == 1
    assert not model.layers[0].self_attn._forward_pre_hooks
    with pytest.raises(RuntimeError, match="in the block"), ef.trace_attention(model):
        raise RuntimeError("in the block")
    assert not model.layers[0].self_attn._forward_pre_hooks


@pytest.mark.parametrize("convert", [False, True], ids=["torch", "ours"])
def test_padding_and_causal_masks_are_known_to_the_page(convert: bool) -> None:
    model = make_encoder().eval()
    if convert:
        model = ef.MultiheadAttention.convert(model, normalizer="entmax", alpha=1.5)
    padding = torch.arange(LENGTH)[None] >= torch.tensor([[3], [5], [5]])
    with torch.no_grad(), ef.trace_attention(model) as traces:
        model(inputs(), src_key_padding_mask=padding)
    (first, _) = ef.show(traces, TOKENS).panels
    assert first.keys == first.queries == ("▁the", "▁cat", "▁sat")
    assert not first.causal
    assert first.alphas == ((1.5, 1.5) if convert else (1.0, 1.0))
    mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
    with torch.no_grad(), ef.trace_attention(model) as traces:
        model(inputs(), mask=mask, is_causal=True)
    assert ef.show(traces, TOKENS).panels[0].causal


def test_weights_that_look_causal_by_chance_are_not_called_masked() -> None:
    layer = ef.MultiheadAttention(WIDTH, HEADS, normalizer="softmax", batch_first=True)
    with ef.trace_attention(layer) as traces:
        layer(*3 * [inputs(1)])
    (trace,) = traces["attention"]
    eye = torch.arange(LENGTH)
    rows = torch.arange(2 * LENGTH + 1)
    trace = trace._replace(support=ef.Support(rows, eye.repeat(2), torch.ones(2 * LENGTH)))
    assert not ef.show(trace).panels[0].causal


def test_sides_of_a_whole_transformer_have_their_tokens() -> None:
    torch.manual_seed(0)
    model = nn.Transformer(WIDTH, HEADS, 1, 1, 32, batch_first=True).eval()
    with torch.no_grad(), ef.trace_attention(model) as traces:
        model(inputs(1), inputs(1)[:, :3])
    view = ef.show(traces, ["die", "Katze", "saß"], TOKENS)
    assert {panel.name: (len(panel.queries), len(panel.keys)) for panel in view.panels} == {
        "encoder.layers.0.self_attn": (5, 5),
        "decoder.layers.0.self_attn": (3, 3),
        "decoder.layers.0.multihead_attn": (3, 5),
    }


def test_a_layer_called_twice_has_two_panels() -> None:
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    with ef.trace_attention(layer) as traces:
        for _ in range(2):
            layer(*3 * [inputs(1)])
    assert [panel.name for panel in ef.show(traces).panels] == ["attention, call 0", "attention, call 1"]
    assert "calls of each layer: {'attention': 2}" in repr(traces)


@pytest.mark.parametrize("model", [nn.Linear(2, 2), "model"], ids=["linear", "string"])
def test_models_without_attention_are_one_sentence(model: nn.Module) -> None:
    message = "no torch.nn.MultiheadAttention|must be a torch.nn.Module, not str"
    with pytest.raises(ArgumentError, match=message), ef.trace_attention(model):
        pass
    with pytest.raises(ArgumentError, match=message):
        ef.MultiheadAttention.convert(model)


def test_attention_that_two_layers_share_stays_shared() -> None:
    model = make_encoder()
    model.layers[1].self_attn = model.layers[0].self_attn
    ef.MultiheadAttention.convert(model)
    assert model.layers[1].self_attn is model.layers[0].self_attn


def test_nothing_was_called() -> None:
    with ef.trace_attention(make_encoder()) as traces:
        pass
    with pytest.raises(ArgumentError, match="no layer; call the model inside the block"):
        ef.show(traces)
