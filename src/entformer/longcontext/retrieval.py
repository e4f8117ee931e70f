"""Model of max retrieval: from a query and n items, (B, 1 + n, 1 + classes), to class scores (B, 1, classes).

    item_i = MLP(priority, class);  query = MLP(random number);  scores = MLP(attention(query, items, items))

One layer, one head, no positions: the task isolates how a normalizer generalizes to more items than in training.
"""

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from entformer.models.attention_settings import AttentionModel, build_attention
from entformer.models.lm_config import LMAttentionConfig
from entformer.nn.multihead_attention import MultiheadAttention

__all__ = ["Retriever"]


class Retriever(AttentionModel):
    """Attention of one query to a set of items."""

    def __init__(self, attention: LMAttentionConfig, classes: int, width: int = 128, heads: int = 1) -> None:
        super().__init__()
        self.items = _two_layers(1 + classes, width, width)
        self.query = _two_layers(1, width, width)
        self.attention = build_attention(attention, width, heads, bias=False)
        self.output = _two_layers(width, width, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        items = self.items(inputs[:, 1:])  # (B, n, width)
        query = self.query(inputs[:, :1, :1])  # (B, 1, width)
        found, _ = self.attention(query, items, items, need_weights=False)
        scores: Tensor = self.output(found)
        return scores

    def run_attention(self, batch: Any) -> None:
        """Runs the attention on the inputs of a batch."""
        self(batch.inputs)

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """Returns the groups of the optimizer: all but alphas decay, as published."""
        groups = super().parameter_groups()
        return {"decay": groups["decay"] + groups["no_decay"], "alpha": groups["alpha"]}

    def attention_layers(self) -> Iterator[tuple[str, int, MultiheadAttention]]:
        """Yields the attention layer, in the form of `CausalLM.attention_layers`."""
        yield "cross", 0, self.attention


def _two_layers(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.GELU(approximate="tanh"), nn.Linear(width, outputs))
