"""The Dropout module: torch's dropout, with a residual that is added."""

import pytest
import torch

from entformer.errors import ArgumentError
from entformer.nn.layers import Dropout


def test_module_acts_in_training_only() -> None:
    torch.manual_seed(0)
    module, x = Dropout(0.5), torch.ones(100)
    assert (module(x) == 0).any()
    assert set(module(x, x).tolist()) == {1.0, 3.0}
    assert torch.equal(module.eval()(x), x)
    assert torch.equal(module(x, x), x + x)


@pytest.mark.parametrize("p", [1.0, -0.1])
def test_invalid_probabilities_are_named(p: float) -> None:
    with pytest.raises(ArgumentError, match=f"dropout={p}"):
        Dropout(p)
