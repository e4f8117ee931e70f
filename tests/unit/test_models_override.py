"""Alphas tried out: exactly the heads that are named change, by exactly that alpha, and afterwards nothing is different."""

from collections.abc import Callable

import pytest
import torch

from entformer.checkpoint import LoadedRun
from entformer.errors import ArgumentError
from entformer.models.override import overridden_alphas, takes_alpha
from entformer.models.seq2seq import KINDS, Seq2Seq
from entformer.nn.cache import WindowedCache
from entformer.nn.multihead_attention import MultiheadAttention
from entformer.nn.window import alibi_windows

MakeRun = Callable[..., LoadedRun]
SOURCE, TARGET = torch.tensor([[20, 30, 40, 3]]), torch.tensor([[2, 25, 35]])


def heads_of(model: Seq2Seq) -> list[tuple[str, int, int]]:
    return [(kind, layer, head) for kind, layer, module in model.attention_layers() for head in range(module.num_heads)]


def scores(model: Seq2Seq) -> torch.Tensor:
    with torch.no_grad():
        return model(SOURCE, TARGET)


def with_normalizer(make_run: MakeRun, name: str, **more: object) -> Seq2Seq:
    return make_run(**{kind: {"normalizer": name, **more} for kind in KINDS}).model


@pytest.mark.parametrize(("alpha", "name"), [(1.0, "softmax"), (1.5, "entmax15"), (2.0, "sparsemax")])
def test_all_heads_overridden_are_that_normalizer(make_run: MakeRun, alpha: float, name: str) -> None:
    learned, fixed = make_run().model, with_normalizer(make_run, name)
    fixed.load_state_dict({key: value for key, value in learned.state_dict().items() if "pre_alpha" not in key})
    before = scores(learned)
    with overridden_alphas(learned, dict.fromkeys(heads_of(learned), alpha)):
        assert all(torch.equal(found, torch.full_like(found, alpha)) for found in learned.alphas().values())
        torch.testing.assert_close(scores(learned), scores(fixed))
        assert not torch.allclose(scores(learned), before)
    assert torch.equal(scores(learned), before)


@pytest.mark.parametrize("backend", ["entformer", "sdpa"])
def test_a_softmax_head_can_be_made_sparse(make_run: MakeRun, backend: str) -> None:
    model = with_normalizer(make_run, "softmax", backend=backend)
    sparse = with_normalizer(make_run, "entmax", alpha=2.0)
    sparse.load_state_dict(model.state_dict())
    with overridden_alphas(model, dict.fromkeys(heads_of(model), 2.0)):
        torch.testing.assert_close(scores(model), scores(sparse))


def test_nothing_is_left_after_an_exception(make_run: MakeRun) -> None:
    model = make_run().model
    before, state = scores(model), {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(RuntimeError, match="on purpose"), overridden_alphas(model, {("encoder", 0, 1): 1.0}):
        raise RuntimeError("on purpose")
    assert all(module.alpha_override is None for _, _, module in model.attention_layers())
    assert torch.equal(scores(model), before)
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_an_inner_override_adds_to_the_outer_one(make_run: MakeRun) -> None:
    model = make_run().model
    own = model.alphas()["decoder"][0, 1]
    with overridden_alphas(model, {("decoder", 0, 0): 1.0}):
        with overridden_alphas(model, {("decoder", 0, 1): 2.0}):
            assert model.alphas()["decoder"][0].tolist() == [1.0, 2.0]
        assert model.alphas()["decoder"][0].tolist() == [1.0, own]


@pytest.mark.parametrize(
    ("head", "alpha", "message"),
    [
        *((head, 1.5, "there is no head .* heads 0 to 1") for head in (("cross", 2, 0), ("cross", 0, 2), ("cross", 0, -1))),
        (("other", 0, 0), 1.5, "there is no head .* heads 0 to 1"),
        *((("cross", 0, 1), alpha, "at least 1") for alpha in (0.99, float("nan"), float("inf"))),
    ],
)
def test_a_wrong_override_is_refused_before_anything_changes(
    make_run: MakeRun, head: tuple[str, int, int], alpha: float, message: str
) -> None:
    model = make_run().model
    with pytest.raises(ArgumentError, match=message):
        overridden_alphas(model, {("cross", 0, 0): 1.5, head: alpha}).__enter__()
    assert all(module.alpha_override is None for _, _, module in model.attention_layers())


@pytest.mark.parametrize("name", ["rela", "topk", "sigmoid"])
def test_what_has_no_alpha_is_refused(make_run: MakeRun, name: str) -> None:
    model = make_run(cross={"normalizer": name}).model
    with pytest.raises(ArgumentError, match=f"has no alpha to change: its weights are {name}"):
        overridden_alphas(model, {("cross", 0, 0): 1.5}).__enter__()
    assert [takes_alpha(module) for kind, _, module in model.attention_layers() if kind == "cross"] == [False, False]


def test_a_cache_that_forgets_by_alpha_refuses_an_override() -> None:
    attention = MultiheadAttention(8, 2, batch_first=True, alpha=1.5, positions="alibi")
    x = torch.randn(1, 3, 8)
    attention.alpha_override = torch.tensor([1.0, 1.5])
    cache = WindowedCache(alibi_windows(attention, torch.ones(8)))
    with pytest.raises(ArgumentError, match="overrides"):
        attention(x, x, x, need_weights=False, is_causal=True, cache=cache)
