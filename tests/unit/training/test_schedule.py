"""Learning rates at known steps."""

import pytest

from entformer.training.schedule import factor


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        ("inverse_sqrt", 1, 0.01),
        ("inverse_sqrt", 50, 0.5),
        ("inverse_sqrt", 100, 1.0),
        ("inverse_sqrt", 400, 0.5),
        ("linear", 100, 1.0),
        ("linear", 550, 0.5),
        ("linear", 1000, 0.0),
        ("cosine", 550, 0.5),
        ("cosine", 1000, 0.0),
        ("constant", 10, 0.1),
        ("constant", 900, 1.0),
    ],
)
def test_factor(schedule: str, step: int, expected: float) -> None:
    assert factor(schedule, step, warmup=100, steps=1000) == pytest.approx(expected, abs=1e-12)


def test_no_warmup() -> None:
    assert [factor("inverse_sqrt", step, warmup=0, steps=10) for step in (1, 4)] == [1.0, 0.5]
