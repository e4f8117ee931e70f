"""Captures queries, keys and values of every attention module on a text, and how sensitive predictions are to each head."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from entformer.errors import ArgumentError
from entformer.hf.configs import switched
from entformer.hf.function import Call, listening
from entformer.hf.masks import Mask

LABEL_SETS = 2  # sampled sets of tokens, one backward pass each

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, eq=False)
class Sample:
    """Some queries of one example, with all its keys."""

    call: Call
    value: Tensor  # (H, K, Dv); a first row of zeros if there are sinks

    def scores(self, scale: float) -> tuple[Tensor, Tensor]:
        """Returns the scores (H, R, K) with this scale, with a first column for the sinks, and which are allowed."""
        scores, mask = replace(self.call, scale=torch.full((self.call.query.shape[1],), scale)).scores()
        return scores[0].float().contiguous(), mask[0]


@dataclass(eq=False)
class Captured:
    """What was captured of one module."""

    heads: int
    samples: list[Sample] = field(default_factory=list)
    fisher: Tensor | None = None  # (H, Dv, Dv), the mean of g g' over queries
    rows: int = 0  # queries that fisher is the mean of
    energy: float = 0.0  # the sum over queries of the squared norm of the output of all heads
    energy_rows: int = 0

    def damage(self, change: Tensor) -> Tensor:
        """Returns the estimated damage of a change (H, R, Dv) of the outputs, summed over queries, (H,)."""
        if self.fisher is not None:
            fisher = (self.fisher / self.rows).to(change)
            return 0.5 * ((change @ fisher) * change).sum((1, 2))
        return change.square().sum((1, 2)) / (self.energy / self.energy_rows + 1e-30)


def capture(
    model: nn.Module,
    inputs: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    *,
    queries: int,
    gradients: bool,
    progress: Progress | None = None,
) -> dict[str, Captured]:
    """Runs the model on `inputs` and returns what was captured of the modules `names`.

    Args:
        model: A converted model.
        inputs: Keyword arguments of the model, one example without padding each.
        names: Qualified names of attention modules.
        queries: How many queries to keep per example.
        gradients: Whether to estimate the Fisher information, if the model has logits.
        progress: Called with what is done, how far, of how much.
    """
    modules = {id(model.get_submodule(name)): name for name in names}
    found: dict[str, Captured] = {}

    def listener(module: nn.Module, call: Call, output: Tensor, _: dict[str, Any]) -> None:
        name = modules.get(id(module))
        if name is None:
            return
        own = found.setdefault(name, Captured(call.query.shape[1]))
        with torch.no_grad():
            own.samples += _samples(call, queries)
            own.energy += float(output.detach().double().square().sum())
            own.energy_rows += output.shape[0] * output.shape[2]
        if output.requires_grad:
            output.register_hook(lambda gradient: _accumulate(own, gradient))

    training = model.training
    model.eval()
    try:
        for number, entry in enumerate(inputs):
            with switched(model), listening(listener), activations_only(model, gradients):
                outputs = model(**entry)
                logits = getattr(outputs, "logits", None)
                if gradients and isinstance(logits, Tensor) and logits.requires_grad:
                    _sampled_gradients(logits)
            if progress is not None:
                progress("reading the text", number + 1, len(inputs))
    finally:
        model.train(training)
    if missing := [name for name in names if name not in found]:
        raise ArgumentError(f"{missing[0]} was not called on the text; give inputs that use every part of the model.")
    return {name: found[name] for name in names}


def _samples(call: Call, queries: int) -> Iterator[Sample]:
    """Yields evenly spaced queries of each example of a call."""
    batch, heads, length, _ = call.query.shape
    keys = call.key.shape[2]
    rows = torch.linspace(0, length - 1, min(queries, length), device=call.query.device).round().long().unique()
    for index in range(batch):
        allowed = call.mask.dense(length, keys, rows.device)
        allowed = allowed[index if allowed.shape[0] > 1 else 0][None, :, rows]
        bias = None if call.bias is None else call.bias.detach()[index if call.bias.shape[0] > 1 else 0][None]
        bias = None if bias is None else bias.expand(1, bias.shape[1], length, keys)[:, :, rows]
        key, value = (tensor.detach()[index][None].float() for tensor in (call.key, call.value))
        one = replace(
            call,
            query=call.query.detach()[index, :, rows][None].float(),
            key=key,
            value=value,
            mask=Mask(elements=allowed),
            bias=bias,
            sinks=None if call.sinks is None else call.sinks.detach(),
            alpha=1.0,
            scale=None,
            dropout=0.0,
        )
        full = value[0].repeat_interleave(heads // value.shape[1], 0)
        yield Sample(one, full if call.sinks is None else F.pad(full, (0, 0, 1, 0)))


def _accumulate(own: Captured, gradient: Tensor) -> None:
    with torch.no_grad():
        rows = gradient.transpose(0, 1).flatten(1, 2).float()  # (H, B * Lq, Dv)
        outer = rows.mT @ rows
        own.fisher = outer if own.fisher is None else own.fisher + outer
        own.rows += rows.shape[1]


def _sampled_gradients(logits: Tensor) -> None:
    """Runs backward from -log p of tokens sampled from the model's own predictions."""
    flat = logits.flatten(0, -2).float()
    generator = torch.Generator(device=flat.device).manual_seed(0)
    probabilities = flat.detach().softmax(-1)
    for last in range(LABEL_SETS - 1, -1, -1):
        labels = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        F.cross_entropy(flat, labels, reduction="sum").backward(retain_graph=last > 0)


@contextmanager
def activations_only(model: nn.Module, gradients: bool) -> Iterator[None]:
    """Computes gradients of activations, not of weights; without `gradients`, of nothing."""
    if not gradients:
        with torch.no_grad():
            yield
        return
    inner: Any = getattr(model, "get_base_model", lambda: model)()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    embedding = inner.get_input_embeddings()
    hook = embedding.register_forward_hook(lambda _module, _inputs, output: output.requires_grad_(True))
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        with torch.enable_grad():
            yield
    finally:
        hook.remove()
        for parameter in trained:
            parameter.requires_grad_(True)
