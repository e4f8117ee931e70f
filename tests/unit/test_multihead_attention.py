"""MultiheadAttention against torch.nn.MultiheadAttention: outputs, gradients, weights, masks, states; costs and mistakes."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from entformer.errors import ArgumentError
from entformer.nn.alpha import LearnedAlpha
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.normalizers import NORMALIZERS

from .tensors import RecordTensors, random

CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 1e-5}  # the promised agreement with torch; values are of order one, float32
EMBED, HEADS, BATCH, QUERIES, KEYS = 12, 3, 2, 5, 7


def boolean(*shape: int, seed: int = 1) -> Tensor:
    """True = ignore, about a third; the first key is never ignored, so that torch gives no NaN."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.35
    mask[..., 0] = False
    return mask


def pair(seed: int = 0, **options: Any) -> tuple[nn.MultiheadAttention, MultiheadAttention]:
    """torch's module with nothing at zero, and ours with its state, loaded strictly."""
    theirs = nn.MultiheadAttention(EMBED, HEADS, **options)
    with torch.no_grad():
        for i, parameter in enumerate(theirs.parameters()):
            parameter.copy_(0.5 * random(*parameter.shape, seed=seed + i))
    ours = MultiheadAttention(EMBED, HEADS, normalizer="softmax", **options)
    assert ours.load_state_dict(theirs.state_dict(), strict=True).missing_keys == []
    return theirs, ours


def inputs(batch_first: bool = False, kdim: int = EMBED, vdim: int = EMBED) -> tuple[Tensor, Tensor, Tensor]:
    shapes = ((QUERIES, EMBED), (KEYS, kdim), (KEYS, vdim))
    made = [random(BATCH, length, size, seed=10 + i) for i, (length, size) in enumerate(shapes)]
    query, key, value = made if batch_first else [t.transpose(0, 1).contiguous() for t in made]
    return query, key, value


OPTIONS = {
    "plain": {},
    "no bias": {"bias": False},
    "batch first": {"batch_first": True},
    "other key and value sizes": {"kdim": 5, "vdim": 9},
    "other value size, no bias": {"vdim": 4, "bias": False, "batch_first": True},
    "bias_k": {"add_bias_kv": True},
    "zero key": {"add_zero_attn": True},
    "all extras": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 5, "batch_first": True},
}
MASKS: dict[str, dict[str, Tensor]] = {
    "none": {},
    "padding": {"key_padding_mask": boolean(BATCH, KEYS)},
    "pairs": {"attn_mask": boolean(QUERIES, KEYS)},
    "pairs per head": {"attn_mask": boolean(BATCH * HEADS, QUERIES, KEYS)},
    "both": {"attn_mask": boolean(BATCH * HEADS, QUERIES, KEYS), "key_padding_mask": boolean(BATCH, KEYS, seed=2)},
    "added": {"attn_mask": random(QUERIES, KEYS, seed=3)},
    "added, -inf too": {"attn_mask": random(QUERIES, KEYS, seed=3).masked_fill(boolean(QUERIES, KEYS), -torch.inf)},
    "0 and -inf": {"attn_mask": torch.zeros(QUERIES, KEYS).masked_fill(boolean(QUERIES, KEYS), -torch.inf)},
    "both added": {
        "attn_mask": random(BATCH * HEADS, QUERIES, KEYS, seed=3),
        "key_padding_mask": random(BATCH, KEYS, seed=4),
    },
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS.keys())
def test_softmax_equals_torch(options: dict[str, Any], masks: dict[str, Tensor]) -> None:
    theirs, ours = pair(**options)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    tensors = inputs(ours.batch_first, ours.kdim, ours.vdim)
    expected, expected_heads = theirs(*tensors, average_attn_weights=False, **masks)
    out, heads = ours(*tensors, average_attn_weights=False, **masks)
    torch.testing.assert_close(out, expected, **CLOSE)
    torch.testing.assert_close(heads, expected_heads, **CLOSE)
    out, mean = ours(*tensors, **masks)
    torch.testing.assert_close(out, expected, **CLOSE)
    torch.testing.assert_close(mean, expected_heads.mean(1), **CLOSE)
    out, nothing = ours(*tensors, need_weights=False, **masks)
    torch.testing.assert_close(out, expected, **CLOSE)
    assert nothing is None


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("average", [False, True])
def test_softmax_gradients_equal_torch(options: dict[str, Any], average: bool) -> None:
    """Those of the weights too: attention can be supervised."""
    theirs, ours = pair(**options)
    tensors = inputs(ours.batch_first, ours.kdim, ours.vdim)
    masks = MASKS["both"]
    grads = []
    for module in (theirs, ours):
        leaves = [t.clone().requires_grad_() for t in tensors]
        out, weights = module(*leaves, average_attn_weights=average, **masks)
        ((out * random(*out.shape, seed=5)).sum() + (weights * random(*weights.shape, seed=6)).sum()).backward()
        assert all(p.grad is not None for p in module.parameters())
        grads.append([t.grad for t in leaves] + [p.grad for _, p in sorted(module.named_parameters())])
    for got, expected in zip(grads[1], grads[0], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)  # sums over batch, length and heads


@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"add_bias_kv": True, "add_zero_attn": True}, {"kdim": 5}])
@pytest.mark.parametrize("average", [True, False])
def test_one_sequence_without_a_batch(options: dict[str, Any], average: bool) -> None:
    theirs, ours = pair(**options)
    query, key, value = random(QUERIES, EMBED), random(KEYS, ours.kdim, seed=1), random(KEYS, EMBED, seed=2)
    masks = {"attn_mask": boolean(HEADS, QUERIES, KEYS), "key_padding_mask": boolean(KEYS, seed=4)}
    for chosen in ({}, masks, {"attn_mask": masks["attn_mask"][0]}):
        expected, expected_weights = theirs(query, key, value, average_attn_weights=average, **chosen)
        out, weights = ours(query, key, value, average_attn_weights=average, **chosen)
        torch.testing.assert_close(out, expected, **CLOSE)
        torch.testing.assert_close(weights, expected_weights, **CLOSE)


@pytest.mark.parametrize("extras", [False, True])
@pytest.mark.parametrize("need_weights", [False, True])
def test_causal_hint_equals_the_mask_it_describes(extras: bool, need_weights: bool) -> None:
    theirs, ours = pair(add_bias_kv=extras, add_zero_attn=extras)
    x = random(QUERIES, BATCH, EMBED)
    mask = nn.Transformer.generate_square_subsequent_mask(QUERIES)
    expected, expected_weights = theirs(x, x, x, attn_mask=mask, need_weights=True)
    for arguments in ({"attn_mask": mask}, {"attn_mask": mask, "is_causal": True}, {"is_causal": True}):
        out, weights = ours(x, x, x, need_weights=need_weights, **arguments)
        torch.testing.assert_close(out, expected, **CLOSE)
        if need_weights:
            torch.testing.assert_close(weights, expected_weights, **CLOSE)


@pytest.mark.parametrize(("bias", "queries", "keys", "offset"), [(causal_upper_left, 6, 6, 0), (causal_lower_right, 4, 7, 3)])
@pytest.mark.parametrize("need_weights", [True, False])
def test_causal_biases_of_torch(bias: Any, queries: int, keys: int, offset: int, need_weights: bool) -> None:
    module = MultiheadAttention(8, 1, batch_first=True)  # with one head of one sequence the empty bias has a valid shape
    x, memory = torch.randn(1, queries, 8), torch.randn(1, keys, 8)
    ignored = torch.ones(queries, keys, dtype=torch.bool).triu(offset + 1)
    found = module(x, memory, memory, need_weights=need_weights, attn_mask=bias(queries, keys))
    assert torch.equal(found[0], module(x, memory, memory, need_weights=need_weights, attn_mask=ignored)[0])
    with pytest.raises(ArgumentError, match=f"made for {queries} queries and {keys} keys, but there are 2 and {keys}"):
        module(x[:, :2], memory, memory, attn_mask=bias(queries, keys))


def test_same_seed_same_start() -> None:
    for options in ({}, {"kdim": 5, "bias": False}, {"add_bias_kv": True}):
        torch.manual_seed(3)
        theirs = nn.MultiheadAttention(EMBED, HEADS, **options)
        torch.manual_seed(3)
        ours = MultiheadAttention(EMBED, HEADS, normalizer="entmax", **options)
        for name, parameter in theirs.named_parameters():
            assert torch.equal(ours.get_parameter(name), parameter), name
    ours.reset_parameters()
    assert not torch.equal(ours.in_proj_weight, theirs.in_proj_weight)  # type: ignore[arg-type]


# ---- state dicts and copies ----------------------------------------------------------------------------------------------


OWN_KEYS = {  # others own nothing
    "entmax": {"alpha.value"},
    "rela": {"norm.gain", "norm.gate"},
    "ssmax": {"scaling.s"},
    "asentmax": {"scaling.beta.weight", "scaling.beta.bias", "scaling.gamma.weight", "scaling.gamma.bias"},
    "softmax_temperature": {"scaling.log_factor"},
    "adaptive_span": {"normalizer_fn.pre_span"},
    "relu2": {"norm.gain", "norm.gate"},
    "gelu": {"norm.gain", "norm.gate"},
    "leaky_relu": {"norm.gain", "norm.gate"},
}


@pytest.mark.parametrize("name", NORMALIZERS)
def test_torch_state_loads_strictly_and_leaves_what_the_normalizer_owns(name: str) -> None:
    theirs, _ = pair()
    ours = MultiheadAttention(EMBED, HEADS, normalizer=name)
    before = copy.deepcopy(ours.state_dict())
    given = theirs.state_dict()
    own = OWN_KEYS.get(name, set())
    assert set(before) - set(given) == own
    ours.load_state_dict(given, strict=True)
    assert set(given) == set(theirs.state_dict())  # the caller's dictionary is not changed
    for key, value in ours.state_dict().items():
        assert torch.equal(value, before[key] if key in own else given[key]), key
    model = nn.Sequential(MultiheadAttention(EMBED, HEADS, normalizer=name), nn.Linear(2, 2))
    model.load_state_dict({"0." + k: v for k, v in given.items()} | {"1." + k: v for k, v in model[1].state_dict().items()})
    assert torch.equal(model[0].out_proj.weight, theirs.out_proj.weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("out_proj.bias"), r"Missing key.*out_proj\.bias"),
        (
            lambda state: state.update({"norm.gain": torch.ones(EMBED)}),
            r"Missing key.*alpha\.value.*Unexpected key.*norm\.gain",
        ),
        (lambda state: state.update({"stray": torch.ones(1)}), r"Unexpected key.*stray"),
        (lambda state: state.update({"in_proj_bias": torch.ones(1)}), "size mismatch for in_proj_bias"),
    ],
)
def test_any_other_difference_is_still_an_error(change: Any, message: str) -> None:
    state = dict(pair()[0].state_dict())
    change(state)
    with pytest.raises(RuntimeError, match=f"(?s){message}"):
        MultiheadAttention(EMBED, HEADS).load_state_dict(state)


def test_what_is_on_the_meta_device_has_no_value_to_keep() -> None:
    with torch.device("meta"):
        ours = MultiheadAttention(EMBED, HEADS)
    with pytest.raises(RuntimeError, match=r"Missing key.*alpha\.value"):
        ours.load_state_dict(pair()[0].state_dict(), assign=True)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_from_torch(options: dict[str, Any]) -> None:
    theirs, _ = pair(**options)
    theirs.out_proj.weight.requires_grad_(False)
    theirs.eval()
    tensors = inputs(theirs.batch_first, theirs.kdim, theirs.vdim)
    ours = MultiheadAttention.from_torch(theirs, normalizer="entmax", alpha=1.0)  # alpha = 1 is softmax
    assert not ours.training
    assert not ours.out_proj.weight.requires_grad
    torch.testing.assert_close(ours(*tensors)[0], theirs(*tensors)[0], **CLOSE)
    learned = MultiheadAttention.from_torch(theirs.double(), alpha="learned", alpha_tied="layer", alpha_init=1.25)
    assert learned.out_proj.weight.dtype == torch.float64
    torch.testing.assert_close(learned.alphas, torch.full((HEADS,), 1.25, dtype=torch.float64))


# ---- costs and mistakes --------------------------------------------------------------------------------------------------


def test_dropout_only_in_training() -> None:
    module = MultiheadAttention(EMBED, HEADS, dropout=0.5, normalizer="entmax15")
    x = random(QUERIES, BATCH, EMBED)
    expected = module.eval()(x, x, x)
    assert torch.equal(module(x, x, x)[0], expected[0])
    torch.manual_seed(4)
    first, weights = module.train()(x, x, x)
    torch.manual_seed(4)
    again, _ = module(x, x, x)
    assert torch.equal(first, again)
    assert not torch.equal(first, expected[0])
    assert torch.equal(weights, expected[1])  # weights are those before dropout


@pytest.mark.parametrize("name", NORMALIZERS)
def test_compiles_to_one_graph(name: str, kernels: None) -> None:
    torch.compiler.reset()  # each normalizer is another graph, and a process may have only so many
    module = MultiheadAttention(EMBED, HEADS, normalizer=name, batch_first=True)
    x = random(BATCH, KEYS, EMBED)
    padding = boolean(BATCH, KEYS)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    out, _ = compiled(x, x, x, key_padding_mask=padding, need_weights=False, is_causal=True)
    torch.testing.assert_close(out, module(x, x, x, key_padding_mask=padding, need_weights=False, is_causal=True)[0], **CLOSE)


def test_nothing_of_size_lq_times_lk_is_made_without_weights() -> None:
    length = 512
    module = MultiheadAttention(8, 1, normalizer="asentmax")
    x = random(length, 1, 8).requires_grad_()
    with RecordTensors() as without:
        module(x, x, x, need_weights=False, is_causal=True)[0].sum().backward()
    assert max(t.nbytes for t in without.made) < 4 * length * length // 2
    with RecordTensors() as recorded:
        module(x, x, x, need_weights=True, is_causal=True)
    assert max(t.nbytes for t in recorded.made) >= length * length  # and one is seen where it is made


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"embed_dim": 10, "num_heads": 3}, "multiple of num_heads=3"),
    ({"dropout": 1.5}, "dropout=1.5"),
    ({"normalizer": "softmin"}, "'softmin'.*softmax, entmax15.*asentmax"),
    ({"alpha": "free"}, "'free'.*learned"),
    ({"alpha": 0.9}, "alpha=0.9"),
    ({"alpha": LearnedAlpha(3)}, "gives 3 values"),
    ({"normalizer": "softmax", "alpha": 1.5}, '"softmax" has no alpha'),
    ({"alpha_init": 5}, r"^alpha_init=5 must lie between 1\.0 and 2\.0\."),
    ({"alpha_init": "1.5"}, "^alpha_init='1.5' is not known; give \"random\" or a number"),
    ({"alpha_init": [1.5, 1.5]}, '^alpha_init must be "random" or a number, not list'),
    ({"alpha_tied": "model"}, "alpha_tied='model'"),
    ({"normalizer": "rela", "rela_norm": "layer"}, "'layer'.*rms, gated, init"),
    ({"normalizer": "softmax", "rela_norm": "gated"}, 'output_norm="gated"'),
    ({"output_norm_per_head": True}, "no effect without an output norm"),
    ({"normalizer": "rela", "output_norm": "rms", "rela_norm": "init"}, "two names"),
    ({"normalizer": "topk", "normalizer_options": {"n": 3}}, "no option 'n'.*are k"),
    ({"normalizer_options": {"k": 3}}, "no option 'k'; it has none"),
    ({"normalizer": "adaptive_span", "add_zero_attn": True}, "have no position"),
    ({"positions": "absolute"}, "'absolute'.*rotary"),
    ({"positions": "alibi", "add_zero_attn": True}, "have no position"),
    ({"backend": "flash"}, "'flash'"),
    ({"embed_dim": "4"}, "embed_dim must be an integer, not str"),
    ({"num_heads": 2.0}, "num_heads must be an integer, not float"),
    ({"backend": "sdpa"}, "computes softmax without ALiBi only"),
    ({"backend": "sdpa", "normalizer": "softmax", "positions": "alibi"}, "without ALiBi only"),
]


@pytest.mark.parametrize(("options", "message"), INVALID)
def test_invalid_construction_raises(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        MultiheadAttention(**{"embed_dim": 4, "num_heads": 2} | options)


CALLS = {
    "dimensions": (((4, 1, 3, 6), (4, 3, 6), (4, 3, 6)), {}, "query has shape .* it must have 3 dimensions, or 2 without a"),
    "embedding": (((4, 3, 5),) * 3, {}, r"query has shape \(4, 3, 5\); its last dimension must be embed_dim=6, not 5\."),
    "size": (((4, 3, 6), (4, 3, 5), (4, 3, 6)), {}, r"key has shape .* must be embed_dim=6, not 5\."),
    "no batch in key": (((4, 3, 6), (4, 6), (4, 6)), {}, "key has shape .* it must have as many dimensions as query, 3"),
    "batch": (((4, 3, 6), (5, 2, 6), (5, 2, 6)), {}, "differ in batch size, dimension 1"),
    "lengths": (((4, 3, 6), (5, 3, 6), (4, 3, 6)), {}, "differ in batch or length"),
    "mask shape": (((4, 3, 6),) * 3, {"attn_mask": torch.zeros(4, 5)}, r"it must be \(4, 4\) or \(6, 4, 4\)"),
    "mask dtype": (((4, 3, 6),) * 3, {"attn_mask": torch.zeros(4, 4, dtype=torch.uint8)}, "attn_mask must be boolean"),
    "padding shape": (((4, 3, 6),) * 3, {"key_padding_mask": torch.zeros(4, 3)}, r"it must be \(3, 4\)"),
    "nothing to attend": (((4, 3, 6), None, None), {}, "None only with a cache"),
    "no value": (((4, 3, 6), (4, 3, 6), None), {}, "both key and value"),
    "causal memory": (((4, 3, 6), None, None), {"is_causal": True}, "is_causal needs key"),
    "keys": (((4, 3, 6),) * 3, {"key_mask": torch.ones(3, 5).bool()}, r"key_mask must be boolean .* dimensions and 4 keys"),
    "float": (((4, 3, 6),) * 3, {"mask": torch.ones(1, 1, 4, 4)}, "mask must be boolean"),
}


@pytest.mark.parametrize("wrong", [[[0.0] * 6], np.zeros((3, 6), np.float32), "text"], ids=["list", "array", "str"])
def test_what_is_no_tensor_is_refused(wrong: Any) -> None:
    tensor = torch.zeros(3, 6)
    for place, name in enumerate(("query", "key", "value")):
        arguments = [wrong if i == place else tensor for i in range(3)]
        advice = "" if isinstance(wrong, str) else rf"; convert it with torch\.as_tensor\({name}\)"
        with pytest.raises(ArgumentError, match=rf"^{name} must be a tensor, not {type(wrong).__name__}{advice}\.$"):
            MultiheadAttention(6, 2)(*arguments)


def test_the_size_of_keys_is_named_kdim_where_it_was_given() -> None:
    x = torch.zeros(4, 3, 6)
    with pytest.raises(ArgumentError, match=r"key has shape .* must be kdim=8, not 6\."):
        MultiheadAttention(6, 2, kdim=8)(x, x, x)


@pytest.mark.parametrize(("shapes", "arguments", "message"), CALLS.values(), ids=CALLS.keys())
def test_invalid_calls_raise(shapes: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        MultiheadAttention(6, 2)(*(None if shape is None else torch.zeros(shape) for shape in shapes), **arguments)
