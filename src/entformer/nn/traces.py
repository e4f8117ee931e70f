"""Records the attention of every layer of a model, ours or torch's: `trace_attention`."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from entformer.errors import ArgumentError
from entformer.nn.hooks import AttentionTrace
from entformer.nn.multihead_attention import MultiheadAttention

__all__ = ["AttentionTraces", "trace_attention"]


class AttentionTraces(dict[str, list[AttentionTrace]]):
    """The calls of each attention layer, by the layer's name in the model. `ef.show(traces, tokens)` shows their heads."""

    def __repr__(self) -> str:
        calls = {name: len(own) for name, own in self.items()}
        return f"AttentionTraces(calls of each layer: {calls}; ef.show(traces, tokens) shows their heads)"


@contextmanager
def trace_attention(model: nn.Module) -> Iterator[AttentionTraces]:
    """Records the attention of every layer of `model` while the block runs.

    ::

        with ef.trace_attention(model) as traces:
            model(x)
        ef.show(traces, tokens)

    The outputs of the model do not change. Weights are recorded before dropout and without gradients, those of every call;
    call the model once or a few times. A `torch.nn.MultiheadAttention` is recorded by a copy that computes the same
    attention a second time. torch's fast path for whole encoder layers is off inside the block.

    Args:
        model: Any module with `ef.MultiheadAttention` or `torch.nn.MultiheadAttention` inside, such as nn.TransformerEncoder.

    Returns:
        A context manager that gives an `AttentionTraces`: the name of each layer that was called, and its calls.

    Raises:
        ArgumentError: `model` has no such layer.
    """
    layers = attention_layers(model)
    if not layers:
        raise ArgumentError(
            f"{type(model).__name__} has no torch.nn.MultiheadAttention or ef.MultiheadAttention to trace; a Hugging Face "
            "model returns its weights if called with output_attentions=True."
        )
    traces = AttentionTraces()
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with ExitStack() as stack:
            for name, layer in layers.items():
                if isinstance(layer, MultiheadAttention):
                    stack.enter_context(_recorded(layer, name, traces))
                else:
                    stack.enter_context(_recorded_copy(layer, name, traces))
            yield traces
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


def attention_layers(model: nn.Module) -> dict[str, nn.MultiheadAttention]:
    """Returns the attention modules inside `model`, ours and torch's, by name."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model must be a torch.nn.Module, not {type(model).__name__}.")
    found = ((name, module) for name, module in model.named_modules() if isinstance(module, nn.MultiheadAttention))
    return {name or "attention": module for name, module in found}


@contextmanager
def _recorded(layer: MultiheadAttention, name: str, traces: AttentionTraces) -> Iterator[None]:
    """Sets the hook of a layer. The hook that was set before is called too, and restored."""
    before = layer.hook

    def hook(trace: AttentionTrace) -> None:
        traces.setdefault(name, []).append(trace)
        if before is not None:
            before(trace)

    layer.hook = hook
    try:
        yield
    finally:
        layer.hook = before


@contextmanager
def _recorded_copy(layer: nn.MultiheadAttention, name: str, traces: AttentionTraces) -> Iterator[None]:
    """Calls a copy of torch's layer with the same inputs."""
    copy = MultiheadAttention.from_torch(layer, normalizer="softmax").eval()

    def call_copy(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        with torch.no_grad():
            copy(*inputs, **options)

    handle = layer.register_forward_pre_hook(call_copy, with_kwargs=True)
    try:
        with _recorded(copy, name, traces):
            yield
    finally:
        handle.remove()
