"""The attention of the language models of `entformer train`, call by call."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from entformer.analysis.traces import Inputs, LayerTrace
from entformer.decoding.attention_record import attention_hooks
from entformer.models.lm import CausalLM
from entformer.nn.dense import masked_scores
from entformer.nn.hooks import AttentionTrace
from entformer.nn.masks import ScoreTerms
from entformer.nn.multihead_attention import MultiheadAttention


@dataclass(frozen=True, eq=False)
class LMCall:
    """One call of attention, an `AttentionCall`."""

    query: Tensor
    key: Tensor
    terms: ScoreTerms
    sinks: None = None

    def scores(self) -> tuple[Tensor, Tensor]:
        """Returns the scores (1, H, Lq, Lk), and which are allowed."""
        scores, _ = masked_scores(self.query, self.key, self.terms)
        return scores, scores > -torch.inf


class LMTracer:
    """Runs a `CausalLM` and passes on every attention call; a `TextTracer`."""

    def __init__(self, model: CausalLM) -> None:
        self.model = model
        self.alphas = {
            (kind, layer): own[layer].double().cpu().numpy()
            for kind, own in model.alphas().items()
            for layer in range(len(own))
        }
        self.normalizers = {kind: module.normalizer for kind, _, module in model.attention_layers()}

    def run(self, inputs: Inputs, hook: Callable[[LayerTrace], None]) -> Tensor:
        """Runs the model on one text, calls `hook` for every attention call, and returns the scores of the next tokens."""

        def pass_on(kind: str, layer: int, module: MultiheadAttention, trace: AttentionTrace) -> None:
            terms = ScoreTerms(trace.masks, module.slopes, trace.causal, trace.offset)
            hook(LayerTrace(kind, layer, LMCall(trace.query, trace.key, terms), trace.support))

        with attention_hooks(self.model, pass_on):
            found: Tensor = self.model(inputs["input_ids"])
            return found


def lm_inputs(model: CausalLM, texts: Iterable[Sequence[int]]) -> list[Inputs]:
    """Returns the inputs of a model for texts of ids."""
    device = next(model.parameters()).device
    return [{"input_ids": torch.as_tensor(ids, device=device).view(1, -1)} for ids in texts]
