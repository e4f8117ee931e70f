"""Our MultiheadAttention in place of torch's, inside modules that torch has built and tools that look for torch's modules."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError, EntformerError
from entformer.nn.cache import KeyValueCache
from entformer.nn.multihead_attention import MultiheadAttention

from .tensors import random

WIDTH, HEADS, BATCH, LENGTH = 16, 4, 3, 7
CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 2e-6}
pytestmark = [
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:torch.jit"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def padding() -> Tensor:
    return torch.arange(LENGTH) >= torch.tensor([[LENGTH], [4], [1]])


def no_fast_path(model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
    """What a model computes layer by layer, without the fast path and nested tensors."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        return model(*args, **kwargs)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("normalizer", ["softmax", "sparsemax", "entmax"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("masked", ["nothing", "padding", "causal", "both"])
def test_encoder(normalizer: str, training: bool, grad: bool, masked: str) -> None:
    """Softmax gives what torch gives; others give in every mode what they give layer by layer."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True)
    theirs = nn.TransformerEncoder(layer, 2).train(training)  # enable_nested_tensor as torch has it
    ours = MultiheadAttention.convert(copy.deepcopy(theirs), normalizer=normalizer)
    assert ours.training is training
    options: dict[str, Any] = {}
    if masked in ("padding", "both"):
        options["src_key_padding_mask"] = padding()
    if masked in ("causal", "both"):
        options["mask"] = nn.Transformer.generate_square_subsequent_mask(LENGTH).isinf()
    x = random(BATCH, LENGTH, WIDTH)
    with torch.set_grad_enabled(grad):
        out = ours(x, **options)
        expected = no_fast_path(theirs if normalizer == "softmax" else ours, x, **options)
    tokens = ~padding() if "src_key_padding_mask" in options else torch.ones(BATCH, LENGTH, dtype=torch.bool)
    torch.testing.assert_close(out[tokens], expected[tokens], **CLOSE)
    if grad:
        out[tokens].square().sum().backward()
        assert all(parameter.grad is not None for parameter in ours.parameters())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(("batch_first", "norm_first"), [(True, False), (False, True)])
def test_full_transformer(training: bool, grad: bool, batch_first: bool, norm_first: bool) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says why it will not use nested tensors
        theirs = nn.Transformer(WIDTH, HEADS, 2, 2, 32, dropout=0.0, batch_first=batch_first, norm_first=norm_first).train(
            training
        )
    ours = MultiheadAttention.convert(copy.deepcopy(theirs), normalizer="softmax")
    sparse = MultiheadAttention.convert(copy.deepcopy(theirs), normalizer="entmax", alpha_init=1.7)
    source, target = random(BATCH, LENGTH, WIDTH), random(BATCH, 5, WIDTH, seed=1)
    target_padding = torch.arange(5) >= torch.tensor([[5], [2], [4]])
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    options: dict[str, Any] = {
        "src_key_padding_mask": padding(),
        "memory_key_padding_mask": padding(),
        "tgt_key_padding_mask": target_padding,
        "tgt_mask": nn.Transformer.generate_square_subsequent_mask(5).isinf(),
        "tgt_is_causal": True,
    }
    with torch.set_grad_enabled(grad):
        out = ours(source, target, **options)
        torch.testing.assert_close(out, no_fast_path(theirs, source, target, **options), **CLOSE)
        out = sparse(source, target, **options)
        torch.testing.assert_close(out, no_fast_path(sparse, source, target, **options), **CLOSE)
    assert sum(isinstance(module, MultiheadAttention) for module in sparse.modules()) == 6
    if grad:
        out.square().sum().backward()
        assert all(parameter.grad is not None for parameter in sparse.parameters())


def test_it_is_a_torch_module_and_says_so() -> None:
    ours = MultiheadAttention(WIDTH, HEADS)
    assert isinstance(ours, nn.MultiheadAttention)
    assert ours._qkv_same_embed_dim is True
    assert MultiheadAttention(WIDTH, HEADS, kdim=5)._qkv_same_embed_dim is False
    assert MultiheadAttention.convert(ours) is ours
    converted = MultiheadAttention.convert(nn.MultiheadAttention(WIDTH, HEADS), normalizer="rela")
    assert isinstance(converted, MultiheadAttention)
    assert converted.normalizer == "rela"


@pytest.mark.parametrize("copied", [False, True])
def test_torch_cannot_compute_softmax_behind_its_back(copied: bool) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True).eval()
    layer.self_attn = MultiheadAttention.from_torch(layer.self_attn, normalizer="sparsemax")
    layer = copy.deepcopy(layer) if copied else layer
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nn.TransformerEncoder(layer, 2)  # without a warning of torch
    x = random(BATCH, LENGTH, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), no_fast_path(layer, x), rtol=0.0, atol=0.0)
        layer.self_attn._forward_pre_hooks.clear()
        with pytest.raises(ArgumentError, match="set_fastpath_enabled"):
            layer(x)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout: torch.layout) -> None:
    module = MultiheadAttention(WIDTH, HEADS, batch_first=True)
    rows = [random(length, WIDTH, seed=length) for length in (5, 2, 7)]
    memories = [random(length, WIDTH, seed=20 + length) for length in (3, 6, 1)]
    query, memory = (torch.nested.nested_tensor(list(given), layout=layout) for given in (rows, memories))
    with torch.no_grad():
        for key, keys in ((query, rows), (memory, memories)):
            out, weights = module(query, key, key)
            assert out.is_nested
            assert out.layout == layout
            for i, (row, one, found) in enumerate(zip(rows, keys, out.unbind(), strict=True)):
                expected, expected_weights = module(row, one, one)
                torch.testing.assert_close(found, expected, **CLOSE)
                torch.testing.assert_close(weights[i, : row.shape[0], : one.shape[0]], expected_weights, **CLOSE)
        causal, _ = module(query, query, query, need_weights=False, is_causal=True)
        torch.testing.assert_close(causal.unbind()[0], module(rows[0], rows[0], rows[0], is_causal=True)[0], **CLOSE)


def test_nested_tensors_that_cannot_be_taken() -> None:
    module = MultiheadAttention(WIDTH, HEADS, batch_first=True)
    nested = torch.nested.nested_tensor([random(5, WIDTH), random(2, WIDTH)])
    other = torch.nested.nested_tensor([random(2, WIDTH), random(2, WIDTH)])
    with pytest.raises(ArgumentError, match="all be nested"):
        module(nested, random(2, 5, WIDTH), random(2, 5, WIDTH))
    with pytest.raises(ArgumentError, match="masks or a cache"):
        module(nested, nested, nested, key_padding_mask=torch.zeros(2, 5, dtype=torch.bool))
    with pytest.raises(ArgumentError, match="must agree"):
        module(nested, nested, other)
    with pytest.raises(ArgumentError, match="batch_first=True"):
        MultiheadAttention(WIDTH, HEADS)(nested, nested, nested)


# ---- tools ---------------------------------------------------------------------------------------------------------------


def test_script_says_what_to_use() -> None:
    for module in (MultiheadAttention(WIDTH, HEADS), nn.Sequential(MultiheadAttention(WIDTH, HEADS))):
        with pytest.raises(EntformerError, match=r"torch\.jit\.script cannot compile MultiheadAttention; use torch\.export"):
            torch.jit.script(module)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("normalizer", ["entmax15", "entmax", "asentmax", "rela"])
def test_dynamic_quantization_leaves_what_torch_leaves(normalizer: str) -> None:
    module = MultiheadAttention(WIDTH, HEADS, normalizer=normalizer).eval()
    quantized = torch.ao.quantization.quantize_dynamic(module, {nn.Linear})
    theirs = torch.ao.quantization.quantize_dynamic(nn.MultiheadAttention(WIDTH, HEADS).eval(), {nn.Linear})
    assert all(out.weight.dtype is torch.float32 for out in (quantized.out_proj, theirs.out_proj))
    x = random(LENGTH, BATCH, WIDTH)
    with torch.no_grad():
        torch.testing.assert_close(quantized(x, x, x)[0], module(x, x, x)[0], rtol=0.0, atol=0.02)
    if module.alphas is None:
        assert quantized.alphas is None
    else:
        torch.testing.assert_close(quantized.alphas, module.alphas)


# ---- compiled ------------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_weights_compile_without_a_break(kernels: None) -> None:
    """Also where lengths change: weights come from the dense computation, whose sizes do not depend on numbers."""
    torch._dynamo.reset()
    module = MultiheadAttention(WIDTH, HEADS, batch_first=True, positions="rotary")
    compiled = torch.compile(module, backend="eager", fullgraph=True, dynamic=True)
    for length in (3, 70):
        x = random(BATCH, length, WIDTH)
        for found, expected in zip(compiled(x, x, x), module(x, x, x), strict=True):
            torch.testing.assert_close(found, expected, **CLOSE)


@torch.no_grad()
def test_decoding_compiles_without_a_break(kernels: None) -> None:
    torch._dynamo.reset()
    module = MultiheadAttention(WIDTH, HEADS, batch_first=True, positions="rotary").eval()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    caches = KeyValueCache(), KeyValueCache()
    for token in random(BATCH, 20, WIDTH).split(1, 1):
        options: dict[str, Any] = {"need_weights": False, "is_causal": True}
        found = compiled(token, token, token, cache=caches[0], **options)[0]
        torch.testing.assert_close(found, module(token, token, token, cache=caches[1], **options)[0], **CLOSE)
