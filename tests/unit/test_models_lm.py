"""The decoder-only model: causality, caches, windows, padding, packing, generation, and what its configuration refuses."""

from typing import Any

import pytest
import torch
from torch import Tensor

from entformer.errors import ArgumentError
from entformer.models.lm import CausalLM
from entformer.models.lm_config import LMConfig

CLOSE: dict[str, Any] = {"rtol": 0.0, "atol": 2e-5}
VOCAB = 11
KINDS = ["nape", "rotary", "alibi", "none", "sinusoidal"]
METHODS = ["softmax", "ssmax", "entmax15", "entmax", "asentmax", "rela", "topk"]


def model(**options: Any) -> CausalLM:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"layers": 2, "heads": 4, "width": 16, "hidden": 24}
    return CausalLM(LMConfig(vocab_size=VOCAB, **sizes | options)).eval()


def ids(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("positions", KINDS)
@pytest.mark.parametrize("normalizer", METHODS)
@torch.no_grad()
def test_token_by_token_equals_all_at_once(normalizer: str, positions: str) -> None:
    lm, tokens = model(positions=positions, attention={"normalizer": normalizer}), ids(2, 30)
    expected = lm(tokens)
    for windowed in (False, True):
        state = lm.start(windowed=windowed)
        found = [lm.step(tokens[:, :20], state), *(lm.step(tokens[:, at], state) for at in range(20, 30))]
        torch.testing.assert_close(torch.stack(found, 1), expected[:, 19:], **CLOSE)
        assert state.length == 30


@torch.no_grad()
def test_no_token_sees_a_later_one() -> None:
    lm, tokens = model(), ids(1, 20)
    changed = tokens.clone()
    changed[:, 12] = (changed[:, 12] + 1) % VOCAB
    before, after = lm(tokens), lm(changed)
    torch.testing.assert_close(before[:, :12], after[:, :12], **CLOSE)
    assert not torch.allclose(before[:, 12:], after[:, 12:])


@torch.no_grad()
def test_a_windowed_state_is_smaller_and_gives_the_same() -> None:
    lm, tokens = model(attention={"normalizer": "asentmax"}), ids(1, 1500)
    full, cut = lm.start(windowed=False), lm.start()
    lm.step(tokens[:, :1490], full)
    lm.step(tokens[:, :1490], cut)
    for at in range(1490, 1500):
        torch.testing.assert_close(lm.step(tokens[:, at], cut), lm.step(tokens[:, at], full), **CLOSE)
    assert cut.bytes < 0.75 * full.bytes
    windows = lm.windows()
    assert [[window is None for window in layer] for layer in windows] == [[False, False, True, True]] * 2


@pytest.mark.parametrize("positions", KINDS)
@pytest.mark.parametrize("normalizer", ["asentmax", "ssmax"])
@torch.no_grad()
def test_padding_on_either_side_and_packing_change_nothing(normalizer: str, positions: str) -> None:
    lm = model(positions=positions, attention={"normalizer": normalizer, "scaling_init": "paper"})
    one, two = ids(1, 9, seed=1), ids(1, 6, seed=2)
    alone = [lm(one)[0], lm(two)[0]]
    nothing = torch.zeros(1, 3, dtype=torch.int64)
    token = torch.arange(9) < torch.tensor([[9], [6]])
    right = lm(torch.cat([one, torch.cat([two, nothing], 1)]), token)
    left = lm(torch.cat([one, torch.cat([nothing, two], 1)]), token.flip(1))
    packed = lm(torch.cat([one, two], 1), cu_seqlens=torch.tensor([0, 9, 15], dtype=torch.int32))
    for found in ((right[0], right[1, :6]), (left[0], left[1, 3:]), (packed[0, :9], packed[0, 9:])):
        for mine, expected in zip(found, alone, strict=True):
            torch.testing.assert_close(mine, expected, **CLOSE)


@pytest.mark.parametrize("positions", ["nape", "rotary", "sinusoidal"])
@torch.no_grad()
def test_generation_is_greedy_and_knows_left_padding(positions: str) -> None:
    lm, prompt = model(positions=positions), ids(2, 7)
    mask = torch.ones(2, 7, dtype=torch.bool)
    mask[1, :3] = False
    found = lm.generate(prompt, 12, mask=mask)
    assert found.shape == (2, 12)
    for row, start in ((0, 0), (1, 3)):
        sequence = prompt[row : row + 1, start:]
        for at in range(12):
            token = lm(sequence)[:, -1].argmax(-1)
            assert token == found[row, at]
            sequence = torch.cat([sequence, token[:, None]], 1)


@torch.no_grad()
def test_generation_ends_at_eos_and_can_draw() -> None:
    lm, prompt = model(), ids(3, 5)
    eos = int(lm.generate(prompt, 1)[0, 0])
    found = lm.generate(prompt, 10, eos=eos)
    assert (found[0] == eos).all()
    assert lm.generate(prompt, 0).shape == (3, 0)
    draws = [lm.generate(prompt, 8, temperature=1.0, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    for arguments, words in (({"temperature": -1.0}, "temperature"), ({"mask": torch.zeros(3, 5, dtype=torch.bool)}, "left")):
        with pytest.raises(ArgumentError, match=words):
            lm.generate(prompt, 3, **arguments)  # type: ignore[arg-type]


def test_every_parameter_learns() -> None:
    for options in (
        {"tied_output": True},
        {"attention": {"normalizer": "entmax", "alpha_tied": "kind"}},
        {"attention": {"normalizer": "entmax", "alpha_tied": "model"}},
        {"attention": {"normalizer": "entmax", "alpha_tied": "across_kinds"}},
        {"positions": "rotary"},
    ):
        lm, tokens = model(**options).train(), ids(4, 20)
        torch.nn.functional.cross_entropy(lm(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
        for name, parameter in lm.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.any(), name
        grouped = [parameter for group in lm.parameter_groups().values() for parameter in group]
        assert len(grouped) == len(list(lm.parameters()))


def test_a_scaled_embedding_is_multiplied_by_the_root_of_the_width() -> None:
    lm, seen = model(scaled_embedding=True), []
    lm.layers[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    lm(ids(4, 20))
    torch.testing.assert_close(seen[0], 4.0 * lm.embedding[ids(4, 20)])


def test_own_options_reach_the_layers() -> None:
    lm = model(positions="nape", nape_share=0.25, nape_slopes="exponential", attention={"normalizer": "topk", "top_k": 3})
    (_, _, attention), _ = lm.attention_layers()
    assert attention.slopes is not None
    assert attention.slopes.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert attention.normalizer_fn.k == 3  # type: ignore[union-attr]
    rotary = model(positions="rotary", rotary_base=5e5)
    assert next(iter(rotary.attention_layers()))[2].rotary.base == 5e5  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"width": 10, "heads": 4}, "multiple of heads"),
        ({"attention": {"normalizer": "hardmax"}}, "hardmax"),
        ({"attention": {"normalizer": "softmax", "backend": "sdpa"}}, "nape"),
        ({"layres": 2}, "layres"),
    ],
)
def test_invalid_arguments_raise(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        LMConfig.from_dict({"vocab_size": 8, **options})
