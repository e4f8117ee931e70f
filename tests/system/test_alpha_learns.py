"""A learned alpha goes where the task needs it, from any start: up to copy one of many keys, down to average all of them.

The scores are given: standard normal noise, plus 4 for the key to copy. Copying is best with few nonzero weights, averaging
with uniform ones; noise in the scores cannot be trained away, so alpha alone decides.
"""

import torch

import entformer as ef


def train_alphas(task: str, starts: list[float], parametrization: str, steps: int = 400) -> list[float]:
    """Trains one head per start, independently of each other."""
    generator = torch.Generator().manual_seed(0)
    alpha = ef.LearnedAlpha(len(starts), init=1.5, parametrization=parametrization)
    values = torch.tensor(starts)
    with torch.no_grad():
        alpha.parameter.copy_(values if parametrization == "projected" else torch.logit(values - 1.0))
    optimizer = torch.optim.AdamW(alpha.parameters(), lr=0.01, weight_decay=0.0)
    rows = torch.arange(64)
    for _ in range(steps):
        scores, values = torch.randn(2, 64, 32, generator=generator).unbind()
        target = values.mean(-1)
        if task == "copy":
            wanted = torch.randint(32, (64,), generator=generator)
            scores[rows, wanted] += 4.0
            target = values[rows, wanted]
        output = (ef.entmax(scores.expand(len(starts), -1, -1), alpha(), alpha_dim=0) * values).sum(-1)
        optimizer.zero_grad()
        (output - target).square().mean(-1).sum().backward()
        optimizer.step()
        ef.project_alphas(alpha, optimizer)
    found: list[float] = alpha.alpha.tolist()
    return found


def test_a_projected_alpha_does_not_depend_on_its_start() -> None:
    assert ef.LearnedAlpha(1).parametrization == "projected"  # the default
    assert min(train_alphas("copy", [1.0, 1.5, 2.0], "projected")) > 1.7
    assert max(train_alphas("average", [1.0, 1.5, 2.0], "projected")) < 1.01


def test_the_published_form_moves_slowly_where_the_sigmoid_is_flat() -> None:
    assert 1.4 < train_alphas("copy", [1.5], "sigmoid")[0] < 2.0
    middle, flat = train_alphas("average", [1.5, 1.9999], "sigmoid")
    assert middle < 1.1
    assert flat > 1.5  # the projected form is below 1.01 by then
