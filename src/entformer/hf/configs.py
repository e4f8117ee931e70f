"""Switching a model between attention implementations, exactly and reversibly.

`model.set_attn_implementation` only logs a warning for a model that it cannot switch, and models built from one configuration
object switch together. Here the model first gets configurations of its own, and every one of them is set and restored.
"""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig
from transformers.masking_utils import sdpa_mask

from entformer.errors import ArgumentError
from entformer.hf.function import forward
from entformer.hf.names import IMPLEMENTATION

PREVIOUS = "_entformer_previous"  # on modules that hold a configuration: the implementation of it and of its parts


def register() -> str:
    """Registers the attention function and its mask function with transformers; returns their name, "entformer".

    `sparsify` and `load` call it. Call it to use `attn_implementation="entformer"` for a model without alphas, which then
    computes softmax.

    Raises:
        ArgumentError: The name is registered with another function.
    """
    registered = AttentionInterface._global_mapping.get(IMPLEMENTATION)
    if registered is not None and registered is not forward:
        raise ArgumentError(
            f"transformers has another attention function named {IMPLEMENTATION!r} ({registered}); remove that registration."
        )
    AttentionInterface.register(IMPLEMENTATION, forward)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
    return IMPLEMENTATION


def own_configs(model: nn.Module) -> None:
    """Replaces the configurations of all modules by copies, so that other models with the same ones are not switched."""
    copies: dict[int, Any] = {}
    for module in model.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, PretrainedConfig):
                setattr(module, name, copy.deepcopy(value, copies))


def switch(model: nn.Module, implementation: str = IMPLEMENTATION) -> None:
    """Makes the model call our function, or another registered one. `restore` undoes it."""
    register()
    for module in model.modules():
        config = vars(module).get("config")
        if isinstance(config, PretrainedConfig) and PREVIOUS not in vars(module):
            module.__dict__[PREVIOUS] = {path: part._attn_implementation for path, part in _parts(config)}
    for module in model.modules():
        config = vars(module).get("config")
        if isinstance(config, PretrainedConfig):
            for _, part in _parts(config):
                part._attn_implementation_internal = implementation


def restore(model: nn.Module) -> None:
    """Gives every configuration the implementation it had before `switch`."""
    for module in model.modules():
        previous = module.__dict__.pop(PREVIOUS, None)
        config = vars(module).get("config")
        if previous is not None and isinstance(config, PretrainedConfig):
            for path, part in _parts(config):
                part._attn_implementation_internal = previous.get(path)


@contextlib.contextmanager
def switched(model: nn.Module, implementation: str = IMPLEMENTATION) -> Iterator[None]:
    """Makes the model call our function, or another, in this context; one that was switched before stays as it is."""
    if any(PREVIOUS in vars(module) for module in model.modules()):
        yield
        return
    switch(model, implementation)
    try:
        yield
    finally:
        restore(model)


def _parts(config: PretrainedConfig, path: str = "") -> Iterator[tuple[str, PretrainedConfig]]:
    """Yields a configuration and its parts (`text_config`, ...), each with its path."""
    yield path, config
    for name in getattr(config, "sub_configs", {}):
        part = getattr(config, name, None)
        if isinstance(part, PretrainedConfig):
            yield from _parts(part, f"{path}.{name}")
