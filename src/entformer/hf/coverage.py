"""Finds the attention modules of a model by running it once, and the reasons why it cannot be converted.

A configuration that names our implementation proves nothing: some models ignore it, some use it for a part of their layers. So
the model runs on a small input, every call of our function is recorded, and so is every softmax or scaled_dot_product_attention
outside of it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from entformer.errors import ArgumentError
from entformer.hf.configs import switched
from entformer.hf.function import Call, listening
from entformer.hf.names import HEADS

ATTENTION_CLASS = re.compile(r"Attention|Attn")
CROSS_NAME = re.compile(r"encoder_attn|encdec|cross_?att", re.IGNORECASE)
FUSED = (F.scaled_dot_product_attention, F.multi_head_attention_forward, torch._native_multi_head_attention)
NOT_RUN = "is not used on the example input; pass example_inputs that use it, or allow_partial=True to leave it as it is"
SOFTMAX = (F.softmax, torch.softmax, Tensor.softmax, torch._softmax)


class UnsupportedModel(ArgumentError):
    """A model cannot be converted. `reasons` has one sentence per module or cause."""

    def __init__(self, model: nn.Module, reasons: list[str]) -> None:
        self.reasons = reasons
        listed = "\n  - ".join(reasons)
        super().__init__(f"{type(model).__name__} cannot be made sparse:\n  - {listed}")


@dataclass
class AttentionModule:
    """One attention module as seen in the run."""

    name: str
    module: nn.Module
    kind: str  # "encoder", "decoder" (causal self-attention) or "cross"
    layer: int  # counts the modules of a kind in the order of their calls
    num_heads: int
    capped: bool  # whether its scores are soft-capped
    calls: int = 1


@dataclass
class Coverage:
    """What a run of a model showed."""

    modules: list[AttentionModule] = field(default_factory=list)
    uncovered: dict[str, str] = field(default_factory=dict)  # qualified name -> class and what it calls
    errors: list[str] = field(default_factory=list)

    def reasons(self, *, allow_partial: bool = False) -> list[str]:
        """Returns why the model cannot be converted; empty if it can."""
        found = list(self.errors)
        if not self.modules and not found:
            found.append("none of its modules calls the attention interface of transformers")
        if not allow_partial or not self.modules:
            found += [f"{name} ({what})" for name, what in self.uncovered.items()]
        return found


class _Outside(TorchFunctionMode):
    """Records softmax and attention functions called outside our own attention function."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[tuple[str, nn.Module]] = []
        self.inside = False
        self.run: set[str] = set()  # names of modules that were called
        self.found: dict[str, str] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.inside and (func in FUSED or func in SOFTMAX):
            name, module = self.stack[-1] if self.stack else ("the model", None)
            of_scores = func in FUSED or (args and isinstance(args[0], Tensor) and args[0].dim() >= 4)
            if of_scores or ATTENTION_CLASS.search(type(module).__name__):
                called = getattr(func, "__name__", "softmax").removeprefix("_")
                self.found.setdefault(name, f"{type(module).__name__} keeps softmax: it calls {called} itself")
        return func(*args, **(kwargs or {}))


@torch.no_grad()
def find_attention(model: nn.Module, inputs: Mapping[str, Any]) -> Coverage:
    """Runs a model on `inputs` and returns its attention modules, and what is not covered."""
    names = {id(module): name for name, module in model.named_modules()}
    has_decoder = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    coverage, outside = Coverage(), _Outside()
    seen: dict[int, AttentionModule] = {}
    counts: dict[str, int] = {}

    def listener(module: nn.Module, call: Call, _: Tensor, keywords: dict[str, Any]) -> None:
        if id(module) in seen:
            seen[id(module)].calls += 1
            return
        name = names.get(id(module))
        if name is None:
            coverage.errors.append(f"{type(module).__name__} is not a submodule of the model")
            return
        kind = _kind(name, module, call, keywords["is_causal"], has_decoder)
        seen[id(module)] = AttentionModule(
            name, module, kind, counts.get(kind, 0), call.query.shape[1], call.softcap is not None
        )
        counts[kind] = counts.get(kind, 0) + 1

    def enter(module: nn.Module, _: Any) -> None:
        outside.stack.append((names[id(module)], module))
        outside.run.add(names[id(module)])

    def leave(module: nn.Module, *_: Any) -> None:
        outside.stack.pop()

    hooks = [module.register_forward_pre_hook(enter) for module in model.modules()]
    hooks += [module.register_forward_hook(leave, always_call=True) for module in model.modules()]
    training = model.training
    model.eval()
    try:
        with switched(model), listening(listener), outside:
            model(**inputs)
    except ArgumentError as err:
        coverage.errors.append(str(err).rstrip("."))
    except Exception as err:
        reason = f"{type(err).__name__}: {str(err).splitlines()[0] if str(err) else ''}"
        coverage.errors.append(f"the model failed on the example input ({reason}); pass one that it can run as example_inputs")
    finally:
        for hook in hooks:
            hook.remove()
        model.train(training)
    coverage.modules = list(seen.values())
    called = {module.name for module in coverage.modules}
    coverage.uncovered = outside.found if coverage.errors else _uncovered(model, called, outside)
    return coverage


def _kind(name: str, module: nn.Module, call: Call, is_causal: bool, has_decoder: bool) -> str:
    """Returns the attention type. `is_decoder` of a module does not tell: it is also set for cross-attention.

    Keys of another length than the queries are those of an encoder only in a model that has a decoder; vision models reduce
    the number of keys, too. Some decoders declare nothing and have their causal limit in the mask.
    """
    queries, keys = call.query.shape[2], call.key.shape[2]
    named = CROSS_NAME.search(name) or getattr(module, "is_cross_attention", False)
    if named or (has_decoder and queries != keys and call.mask.elements is None and not call.mask.causal):
        return "cross"
    if not is_causal and queries == keys > 1:
        is_causal = not bool(call.mask.dense(queries, keys, call.query.device).triu(1).any())
    return "decoder" if is_causal else "encoder"


def _uncovered(model: nn.Module, called: set[str], outside: _Outside) -> dict[str, str]:
    """Returns modules that compute attention, or look as if they did, without calling our function."""
    found = {name: what for name, what in outside.found.items() if name not in called}
    for name, module in model.named_modules():
        related = any(_inside(name, other) or _inside(other, name) for other in (*called, *found))
        below = any(ATTENTION_CLASS.search(type(part).__name__) for own, part in module.named_modules() if own)
        if ATTENTION_CLASS.search(type(module).__name__) and not related and not below and HEADS not in name.split("."):
            why = "does not call the attention interface" if name in outside.run else NOT_RUN
            found[name] = f"{type(module).__name__} {why}"
    return found


def _inside(name: str, other: str) -> bool:
    """Returns whether one module contains the other, or is it."""
    return name == other or name.startswith(f"{other}.") or other == ""
