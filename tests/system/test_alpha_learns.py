"""A learned alpha goes where the task needs it, from any start: up to copy one of many keys, down to average all of them.

The head's scores are given: standard normal noise, plus 4 for the key to copy. Copying is best with few nonzero weights,
averaging with uniform ones; noise in the scores cannot be trained away, so alpha alone decides.
"""

import pytest
import torch

import entformer as ef


def train_alpha(task: str, start: float, parametrization: str, steps: int = 400) -> float:
    generator = torch.Generator().manual_seed(0)
    alpha = ef.LearnedAlpha(1, init=start, parametrization=parametrization)
    optimizer = torch.optim.AdamW(alpha.parameters(), lr=0.01, weight_decay=0.0)
    rows = torch.arange(64)
    for _ in range(steps):
        scores, values = torch.randn(2, 64, 32, generator=generator).unbind()
        target = values.mean(-1)
        if task == "copy":
            wanted = torch.randint(32, (64,), generator=generator)
            scores[rows, wanted] += 4.0
            target = values[rows, wanted]
        output = (ef.entmax(scores, alpha()) * values).sum(-1)
        optimizer.zero_grad()
        (output - target).square().mean().backward()
        optimizer.step()
        ef.project_alphas(alpha, optimizer)
    return alpha.alpha.item()


@pytest.mark.parametrize("start", [1.0, 1.5, 2.0])
def test_a_projected_alpha_does_not_depend_on_its_start(start: float) -> None:
    assert ef.LearnedAlpha(1).parametrization == "projected"  # the default
    assert train_alpha("copy", start, "projected") > 1.7
    assert train_alpha("average", start, "projected") < 1.01


def test_the_published_form_moves_slowly_where_the_sigmoid_is_flat() -> None:
    assert 1.4 < train_alpha("copy", 1.5, "sigmoid") < 2.0
    assert train_alpha("average", 1.5, "sigmoid") < 1.1
    assert train_alpha("average", 1.9999, "sigmoid") > 1.5  # the projected form is below 1.01 by then
