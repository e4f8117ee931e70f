"""The alpha-entmax of the page gives the weights of Python, in a real browser."""

import math
import random
from typing import Any

import pytest
import torch
from playwright.sync_api import Browser

from entformer import entmax
from entformer.pages import page_file

ALPHAS = (1.0, 1.0 + 1e-9, 1.0001, 1.2, 1.5, 1.73, 2.0, 2.5, 3.0, 4.0)
SPECIAL = [
    [0.0],
    [-7.5],
    [1.0, 1.0],
    [2.0] * 50,
    [3.0, 3.0, 3.0, -1.0],
    [5.0, -math.inf, 4.5, -math.inf],
    [-math.inf, -math.inf],
    [math.inf, 1.0, math.inf],
    [1000.0, -1000.0, 999.5],
    [1e-12, 0.0, -1e-12],
]


def random_rows() -> list[list[float]]:
    rng = random.Random(7)
    rows = [[rng.gauss(0, rng.choice([0.01, 1, 10])) for _ in range(rng.choice([2, 3, 10, 64, 300]))] for _ in range(120)]
    ties = [[round(value) for value in row] for row in rows[:40]]
    masked = [[value if rng.random() > 0.4 else -math.inf for value in row] for row in rows[40:80]]
    return rows + ties + masked


@pytest.fixture(scope="module")
def weights_in_browser(browser: Browser) -> Any:
    page = browser.new_page()
    page.add_script_tag(content=page_file("solver.js"))

    def weights(rows: list[list[float]], alpha: float) -> list[list[float]]:
        found: list[list[float]] = page.evaluate(
            "([rows, alpha]) => rows.map((row) => Array.from(EntmaxSolver.entmax(row, alpha)))", [rows, alpha]
        )
        return found

    yield weights
    page.close()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_the_browser_gives_the_weights_of_python(weights_in_browser: Any, alpha: float) -> None:
    rows = SPECIAL + random_rows()
    for row, found in zip(rows, weights_in_browser(rows, alpha), strict=True):
        expected = entmax(torch.tensor(row, dtype=torch.float64), alpha=alpha)
        torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), expected, rtol=0, atol=1e-6)
        # Where Python is well inside the support, or well outside of it, so is the browser.
        assert all(value > 0 for value, other in zip(found, expected.tolist(), strict=True) if other > 1e-6)
        if alpha > 1.1:
            beyond = max(row) - 1 / (alpha - 1) if math.isfinite(max(row)) else math.inf
            assert all(value == 0 for value, score in zip(found, row, strict=True) if score < beyond)


def test_random_alphas(weights_in_browser: Any) -> None:
    rng = random.Random(3)
    for row in random_rows()[:60]:
        alpha = rng.uniform(1, 4)
        expected = entmax(torch.tensor(row, dtype=torch.float64), alpha=alpha)
        found = torch.tensor(weights_in_browser([row], alpha)[0], dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_a_nan_fills_its_row_and_no_other(weights_in_browser: Any) -> None:
    broken, empty, whole = weights_in_browser([[1.0, math.nan], [], [0.0]], 1.5)
    assert [math.isnan(value) for value in broken] == [True, True]
    assert empty == []
    assert whole == [1.0]
