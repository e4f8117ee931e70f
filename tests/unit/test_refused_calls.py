"""A call that is refused, at whatever point, leaves caches and decoding states as they were, so it can be tried again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from entformer.errors import ArgumentError
from entformer.models.config import Seq2SeqConfig
from entformer.models.lm import CausalLM
from entformer.models.lm_config import LMConfig
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.cache import KeyValueCache, WindowedCache
from entformer.nn.multihead_attention import MultiheadAttention

from .tensors import random

EMBED, HEADS = 16, 4
CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 2e-6}
WINDOWS = [None, 40, 40, 60]


class Stop(Exception):
    """Raised inside a module, as a bug or an interrupt would be."""


@contextmanager
def stopping(module: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, a call of this module raises, and the error reaches the caller."""

    def raising(*_: Any, **__: Any) -> Any:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(module, "forward", raising)
        with pytest.raises(Stop):
            yield


HELD = 20
# Arguments that forward refuses, at every check it makes, of one token after `HELD` others.
WRONG: dict[str, dict[str, Any]] = {
    "padding too short": {"key_padding_mask": torch.zeros(2, HELD, dtype=torch.bool)},
    "padding of another batch": {"key_padding_mask": torch.zeros(3, HELD + 1, dtype=torch.bool)},
    "integer padding": {"key_padding_mask": torch.zeros(2, HELD + 1, dtype=torch.int64)},
    "another batch": dict.fromkeys(("query", "key", "value"), random(3, 1, EMBED)),
    "another width": dict.fromkeys(("query", "key", "value"), random(2, 1, EMBED + 1)),
    "another dtype": dict.fromkeys(("query", "key", "value"), random(2, 1, EMBED).double()),
    "no keys": {"key": None, "value": None},
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("windowed", [False, True])
@torch.no_grad()
def test_attention_leaves_its_cache(wrong: str, windowed: bool) -> None:
    torch.manual_seed(0)
    module = MultiheadAttention(EMBED, HEADS, batch_first=True, alpha=1.5, positions="alibi")
    cache: Any = WindowedCache(WINDOWS) if windowed else KeyValueCache()
    x = random(2, 30, EMBED)

    def feed(piece: Tensor, **options: Any) -> Tensor:
        inputs = dict.fromkeys(("query", "key", "value"), piece)
        out: Tensor = module(**inputs | options, need_weights=False, is_causal=True, cache=cache)[0]
        return out

    feed(x[:, :HELD])
    before = cache.length, cache.bytes
    with pytest.raises((ArgumentError, RuntimeError)):
        feed(x[:, HELD : HELD + 1], **WRONG[wrong])
    assert (cache.length, cache.bytes) == before
    rest = torch.cat([feed(x[:, at : at + 1]) for at in range(HELD, 30)], 1)
    expected = module(x, x, x, need_weights=False, is_causal=True)[0][:, HELD:]
    torch.testing.assert_close(rest, expected, **CLOSE)


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("point", ["out_proj", "norm", "scaling"])
@torch.no_grad()
def test_attention_leaves_its_cache_when_a_part_raises(windowed: bool, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = MultiheadAttention(EMBED, HEADS, batch_first=True, normalizer="rela", scaling="ssmax", positions="alibi")
    cache: Any = WindowedCache(WINDOWS) if windowed else KeyValueCache(1)
    x = random(2, 300, EMBED)
    outputs = []
    for at, piece in enumerate(x.split(25, 1)):  # long enough for windows to forget in bulk
        if at % 2:
            with stopping(getattr(module, point), monkeypatch):
                module(piece, piece, piece, need_weights=False, is_causal=True, cache=cache)
        outputs.append(module(piece, piece, piece, need_weights=False, is_causal=True, cache=cache)[0])
    assert cache.length == 300
    if not windowed:
        expected = module(x, x, x, need_weights=False, is_causal=True)[0]
        torch.testing.assert_close(torch.cat(outputs, 1), expected, rtol=0.0, atol=1e-5)


@torch.no_grad()
def test_caches_check_before_they_write() -> None:
    k, v = random(2, HEADS, 3, 4), random(2, HEADS, 3, 5)
    for cache in (KeyValueCache(1), WindowedCache(WINDOWS)):
        cache.append(k, v)
        before = cache.length, cache.bytes
        refused: list[Callable[[], Any]] = [
            lambda cache=cache: cache.append(k, v[:, :, :2]),
            lambda cache=cache: cache.append(k, v[..., :2]),  # keys would fit
            lambda cache=cache: cache.append(k, v.double()),
            lambda cache=cache: cache.append(k[:1], v[:1]),
            lambda cache=cache: cache.append(k[:, :1], v[:, :1]),
            lambda cache=cache: cache.append(k[0], v[0]),
            lambda cache=cache: cache.reorder(torch.tensor([0, 2])),
            lambda cache=cache: cache.reorder(torch.tensor([0.0])),
            lambda cache=cache: cache.reorder(torch.tensor([[0]])),
            lambda cache=cache: cache.crop(4),
            lambda cache=cache: cache.crop(-1),
        ]
        for call in refused:
            with pytest.raises(ArgumentError):
                call()
            assert (cache.length, cache.bytes) == before
        found = cache.append(k + 1.0, v + 1.0)
        keys = found[0] if isinstance(cache, KeyValueCache) else found[0].keys  # type: ignore[union-attr]
        heads = slice(None) if isinstance(cache, KeyValueCache) else [0]
        assert torch.equal(keys, torch.cat([k, k + 1.0], 2)[:, heads])


# ---- models --------------------------------------------------------------------------------------------------------------


def language_model(**options: Any) -> CausalLM:
    torch.manual_seed(1)
    attention = {"normalizer": "asentmax", "scaling_init": "paper"}
    config = {"vocab_size": 13, "layers": 3, "heads": HEADS, "width": EMBED, "hidden": 24, "attention": attention, **options}
    return CausalLM(LMConfig.from_dict(config)).eval()


def ids(*shape: int) -> Tensor:
    return torch.randint(0, 13, shape, generator=torch.Generator().manual_seed(3))


STEPS: dict[str, Callable[[Tensor], tuple[Any, ...]]] = {
    "mask of another length": lambda token: (token, torch.ones(2, 2, dtype=torch.bool)),
    "mask of another batch": lambda token: (token, torch.ones(3, 1, dtype=torch.bool)),
    "integer mask": lambda token: (token, torch.ones(2, 1, dtype=torch.int64)),
    "another batch": lambda token: (token[:1],),
    "token out of range": lambda token: (token + 100,),
    "no tokens": lambda token: (token[:, None][:, :0],),
    "floating-point tokens": lambda token: (token.float(),),
}


@pytest.mark.parametrize("wrong", STEPS)
@pytest.mark.parametrize(
    ("positions", "masked", "windowed"),
    [("nape", False, True), ("alibi", True, True), ("rotary", True, False), ("sinusoidal", False, False)],
)
def test_a_language_model_leaves_its_state(wrong: str, positions: str, masked: bool, windowed: bool) -> None:
    model, tokens = language_model(positions=positions), ids(2, 12)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[1, :3] = not masked
    state = model.start(windowed=windowed)
    model.step(tokens[:, :8], state, mask[:, :8] if masked else None)
    before = state.length, state.bytes, state.mask
    token, *options = STEPS[wrong](tokens[:, 8])
    with pytest.raises((ArgumentError, RuntimeError, IndexError)):
        model.step(token, state, *options)
    assert (state.length, state.bytes) == before[:2]
    assert state.mask is before[2]
    for at in range(8, 12):
        scores = model.step(tokens[:, at], state)
    with torch.no_grad():
        expected = model(tokens, mask if masked else None)[:, -1]
    torch.testing.assert_close(scores, expected, rtol=0.0, atol=2e-5)


@pytest.mark.parametrize("layer", [0, 2])
@pytest.mark.parametrize("point", ["attention", "feed_forward", "after_feed_forward"])
@pytest.mark.parametrize("windowed", [False, True])
def test_a_language_model_that_stops_inside(layer: int, point: str, windowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens = language_model(), ids(2, 6)
    state = model.start(windowed=windowed)
    model.step(tokens[:, :4], state)
    with stopping(getattr(model.layers[layer], point), monkeypatch):
        model.step(tokens[:, 4], state)
    assert [cache.length for cache in state.caches] == [4, 4, 4]
    scores = model.step(tokens[:, 4:], state)
    with torch.no_grad():
        torch.testing.assert_close(scores, model(tokens)[:, -1], rtol=0.0, atol=1e-5)


def test_a_state_of_another_model_is_refused() -> None:
    model, state = language_model(), language_model(layers=2).start()
    with pytest.raises(ArgumentError, match=r"2 layers.*this model has 3"):
        model.step(ids(2), state)
    assert state.length == 0


def translator() -> Seq2Seq:
    torch.manual_seed(2)
    config = {"vocab_size": 13, "encoder_layers": 1, "decoder_layers": 3, "heads": 2, "width": 16, "hidden": 24, "dropout": 0.0}
    return Seq2Seq(Seq2SeqConfig.from_dict(config)).eval()


def test_a_decoder_leaves_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    model, source, target = translator(), ids(2, 5).clamp(min=4), ids(2, 6).clamp(min=4)
    state = model.start(source)
    model.step(target[:, :3], state)

    def lengths() -> list[int]:
        return [cache.length for cache in state.caches]

    for wrong in (target[:1, 3], target[:, :0], target[:, 3] + 100, target[:, 3].float()):
        with pytest.raises((ArgumentError, RuntimeError, IndexError)):
            model.step(wrong, state)
        assert lengths() == [3, 3, 3]
    points: list[nn.Module] = [
        m for layer in model.decoder for m in (layer.attention, layer.cross_attention, layer.feed_forward)
    ]  # type: ignore[misc]
    for point in [*points, model.decoder_norm]:
        with stopping(point, monkeypatch):
            model.step(target[:, 3], state)
        assert lengths() == [3, 3, 3]
    for index in (torch.tensor([0, 5]), torch.tensor([-1]), torch.tensor([0.5])):
        with pytest.raises(ArgumentError, match="index"):
            state.reorder(index)
        assert state.batch == 2
    scores = model.step(target[:, 3:], state)
    with torch.no_grad():
        torch.testing.assert_close(scores, model(source, target)[:, -1], rtol=0.0, atol=1e-5)


# ---- states that go back, change rows, or leave inference mode -----------------------------------------------------------


@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("positions", ["nape", "rotary"])
def test_a_state_is_reordered_and_cropped(windowed: bool, positions: str) -> None:
    model, tokens = language_model(positions=positions), ids(3, 14)
    mask = torch.ones(3, 14, dtype=torch.bool)
    mask[2, :2] = False
    state = model.start(windowed=windowed)
    model.step(tokens[:, :10], state, mask[:, :10])
    index = torch.tensor([2, 0, 0, 1])
    state.reorder(index)
    assert state.batch == 4
    tokens, mask = tokens[index], mask[index]
    model.step(ids(4, 3), state)  # tokens that turn out to be wrong
    state.crop(10)
    assert state.length == 10
    assert state.mask is not None
    assert state.mask.shape == (4, 10)
    scores = model.step(tokens[:, 10:], state)
    with torch.no_grad():
        torch.testing.assert_close(scores, model(tokens, mask)[:, -1], rtol=0.0, atol=2e-5)
    state.crop(0)
    again = model.step(tokens[:2, :5], state)  # an empty state takes another batch
    with torch.no_grad():
        torch.testing.assert_close(again, model(tokens[:2, :5])[:, -1], rtol=0.0, atol=2e-5)


def test_a_state_that_has_forgotten_too_much_is_not_cropped() -> None:
    cache = WindowedCache([2, None])
    for piece in random(1, 2, 600, 4).split(50, 2):
        cache.append(piece, piece)
    before = cache.length, cache.bytes
    with pytest.raises(ArgumentError, match="windowed=False"):
        cache.crop(100)
    assert (cache.length, cache.bytes) == before
    cache.crop(590)
    parts = cache.append(random(1, 2, 1, 4), random(1, 2, 1, 4))
    assert {part.keys.shape[2] for part in parts} == {591, 2}


def test_an_empty_state_has_nothing_to_reorder() -> None:
    for windowed in (False, True):
        with pytest.raises(ArgumentError, match="empty"):
            language_model().start(windowed=windowed).reorder(torch.tensor([0]))


@pytest.mark.parametrize("windowed", [False, True])
def test_a_state_begun_in_inference_mode_goes_on_outside(windowed: bool) -> None:
    model, tokens = language_model(), ids(2, 8)
    with torch.inference_mode():
        state = model.start(windowed=windowed)
        model.step(tokens[:, :3], state)
        state.reorder(torch.tensor([1, 0]))
    model.step(tokens[:, 3:6].flip(0), state)
    with torch.inference_mode():
        scores = model.step(tokens[:, 6:].flip(0), state)
    with torch.no_grad():
        torch.testing.assert_close(scores.flip(0), model(tokens)[:, -1], rtol=0.0, atol=1e-5)
