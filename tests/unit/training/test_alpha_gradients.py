"""dL/dalpha over the steps of a log interval: its mean and its spread over steps, whatever the alphas are made of."""

import pytest
import torch

from entformer.models.config import Seq2SeqConfig
from entformer.models.seq2seq import Seq2Seq
from entformer.nn.alpha import learned_alphas
from entformer.training.alpha_gradients import AlphaGradients


def model_of(parametrization: str, tied: str = "head") -> Seq2Seq:
    attention = {"alpha_parametrization": parametrization, "alpha_tied": tied, "alpha_init": 1.3}
    sizes = {"vocab_size": 12, "encoder_layers": 2, "decoder_layers": 1, "heads": 2, "width": 8, "hidden": 16}
    kinds = {"encoder": attention, "decoder": {"normalizer": "softmax"}, "cross": attention}
    return Seq2Seq(Seq2SeqConfig.from_dict({**sizes, **kinds}))


@pytest.mark.parametrize("parametrization", ["sigmoid", "projected"])
def test_mean_and_spread_over_steps(parametrization: str) -> None:
    model = model_of(parametrization)
    gradients = AlphaGradients(model)
    assert gradients.reset() == {}
    for slope in (1.0, -3.0):
        model.zero_grad()
        for place, alpha in enumerate(learned_alphas(model)):
            (alpha() * torch.tensor([slope, place])).sum().backward()
        gradients.add()
    found = gradients.reset()
    assert set(found) == {"steps", "encoder", "encoder_std", "cross", "cross_std"}
    assert found["steps"] == 2
    assert found["encoder"] == [
        [pytest.approx(-1.0, rel=1e-3), 0.0],
        [pytest.approx(-1.0, rel=1e-3), pytest.approx(1.0, rel=1e-3)],
    ]
    assert found["cross_std"] == [[pytest.approx(2.0, rel=1e-3), pytest.approx(0.0, abs=1e-3)]]
    assert gradients.reset() == {}


def test_tied_alphas_show_their_one_gradient_at_every_head() -> None:
    model = model_of("projected", "kind")
    gradients = AlphaGradients(model)
    for alpha in learned_alphas(model):
        (alpha() * torch.tensor([1.0, 2.0])).sum().backward()
    gradients.add()
    assert gradients.reset()["encoder"] == [[3.0, 3.0], [3.0, 3.0]]


def test_the_sigmoid_in_its_tail_gives_numbers() -> None:
    model = model_of("sigmoid")
    gradients = AlphaGradients(model)
    for alpha in learned_alphas(model):
        torch.nn.init.constant_(alpha.parameter, -800.0)
        alpha().sum().backward()
    gradients.add()
    assert gradients.reset()["cross"] == [[0.0, 0.0]]


def test_state_is_put_back_and_that_of_another_model_is_not() -> None:
    first, second = (AlphaGradients(model_of("projected")) for _ in range(2))
    assert first.state() == []
    for alpha in first.alphas:
        (0.1 * alpha()).sum().backward()
    first.add()
    second.load(first.state())
    assert second.state() == first.state()
    second.load([1.0, 2.0])
    second.load([])
    assert second.reset() == first.reset()
