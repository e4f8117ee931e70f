"""Learning-rate schedules: a factor of the peak rate for each step, counted from 1.

    warm-up        step / warmup                        up to `warmup`
    inverse_sqrt   sqrt(warmup / step)                  after it, as in the paper
    linear         (steps - step) / (steps - warmup)    reaches 0 at the last step
    cosine         half a cosine from 1 to 0
    constant       1

A function of the step alone, so there is no state to save.
"""

import math

from entformer.training.recipe import TrainingConfig


def rate(config: TrainingConfig, step: int) -> float:
    """Returns the learning rate of `step` >= 1."""
    return config.lr * factor(config.schedule, step, config.warmup, config.steps)


def factor(schedule: str, step: int, warmup: int, steps: int) -> float:
    """Returns the factor of the peak rate at `step`."""
    if step < warmup:
        return step / warmup
    if schedule == "inverse_sqrt":
        return math.sqrt(max(warmup, 1) / step)
    if schedule == "constant":
        return 1.0
    left = max(steps - step, 0) / max(steps - warmup, 1)
    return left if schedule == "linear" else 0.5 * (1.0 - math.cos(math.pi * left))
