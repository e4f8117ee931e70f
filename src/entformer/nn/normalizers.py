"""The names by which attention knows how scores become weights, and what is true of each. In: a name. Out: its traits.

A new normaliser is one entry here: the kernel that computes it, its alpha, and the modules it brings. One of your own needs no
entry: `package.module:Name` is a module class, or a function, that maps scores to weights (see `nn/dense.py`).
"""

import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import nn

from entformer.errors import ArgumentError
from entformer.nn.alpha import LearnedAlpha
from entformer.nn.dense import RowMap
from entformer.nn.rowmaps import AdaptiveTemperature, ReluN, Sigmoid, TopK
from entformer.nn.scaling import ASEntmaxScaling, SSMaxScaling

__all__ = ["NORMALIZERS", "Normalizer", "alpha_of", "normalizer_of"]


@dataclass(frozen=True)
class Normalizer:
    """What is true of one normaliser, whatever the scores."""

    name: str
    kernel: str | None  # the name `attention` knows it by; None: `rows` computes it
    alpha: float | Literal["learned"] | None  # the alpha it has unless told otherwise; None: it has none
    learns_alpha: bool = False  # another alpha may be chosen, or learned
    sums_to_one: bool = True
    exact_zeros: bool = True
    can_be_null: bool = False  # a row may have no weight at all although keys are allowed
    needs_output_norm: bool = False  # the size of its output grows with the number of keys
    scaling: Callable[[int, int], nn.Module] | None = None  # (embed_dim, num_heads) -> factors of the queries
    rows: Callable[[int], RowMap] | None = None  # num_heads -> a mapping without a fused kernel

    @property
    def uses_length(self) -> bool:
        """The weights depend on how many keys there are, not on their scores alone."""
        return self.scaling is not None


def _ssmax_scaling(embed_dim: int, num_heads: int) -> nn.Module:
    return SSMaxScaling(num_heads)  # does not look at the layer's input


def _topk(_heads: int) -> RowMap:
    return TopK()


def _adaptive_temperature(_heads: int) -> RowMap:
    return AdaptiveTemperature()


def _sigmoid(_heads: int) -> RowMap:
    return Sigmoid()


def _relu_n(_heads: int) -> RowMap:
    return ReluN()


NORMALIZERS: dict[str, Normalizer] = {
    entry.name: entry
    for entry in (
        Normalizer("softmax", kernel="softmax", alpha=1.0, exact_zeros=False),
        Normalizer("entmax15", kernel="entmax15", alpha=1.5),
        Normalizer("sparsemax", kernel="sparsemax", alpha=2.0),
        Normalizer("entmax", kernel="entmax", alpha="learned", learns_alpha=True),
        Normalizer("rela", kernel="rela", alpha=None, sums_to_one=False, can_be_null=True, needs_output_norm=True),
        Normalizer("ssmax", kernel="softmax", alpha=1.0, exact_zeros=False, scaling=_ssmax_scaling),
        Normalizer("asentmax", kernel="entmax", alpha=1.5, learns_alpha=True, scaling=ASEntmaxScaling),
        Normalizer("topk", kernel=None, alpha=None, rows=_topk),
        Normalizer("adaptive_temperature", kernel=None, alpha=None, exact_zeros=False, rows=_adaptive_temperature),
        Normalizer("sigmoid", kernel=None, alpha=None, sums_to_one=False, exact_zeros=False, rows=_sigmoid),
        Normalizer("relu_n", kernel=None, alpha=None, sums_to_one=False, can_be_null=True, rows=_relu_n),
    )
}


def normalizer_of(name: str) -> Normalizer:
    """The entry of this name, or one made for `package.module:Name`."""
    if name in NORMALIZERS:
        return NORMALIZERS[name]
    if ":" in name:
        return Normalizer(
            name, kernel=None, alpha=None, sums_to_one=False, exact_zeros=False, rows=partial(_made, _imported(name), name)
        )
    raise ArgumentError(
        f"normalizer={name!r} is not known; choose one of {', '.join(NORMALIZERS)}, or module:Name for one of your own."
    )


def _imported(name: str) -> Any:
    """What `package.module:Name` names. The folder one works in is looked into too, as with python -m."""
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except (ImportError, ValueError) as problem:
        raise ArgumentError(f"normalizer={name!r}: the module {module!r} cannot be imported ({problem}).") from problem
    finally:
        if added:
            sys.path.remove(here)
    if not callable(getattr(found, attribute, None)):
        raise ArgumentError(f"normalizer={name!r}: {module!r} has no class or function {attribute!r}.")
    return getattr(found, attribute)


def _made(found: Any, name: str, heads: int) -> RowMap:
    """A class is called without arguments, or with num_heads if it has such a parameter; a function is taken as it is."""
    made: RowMap = found
    if not isinstance(found, type):
        return made
    make: Callable[..., Any] = found
    try:
        made = make(num_heads=heads) if "num_heads" in inspect.signature(make).parameters else make()
    except TypeError as problem:
        raise ArgumentError(
            f"normalizer={name!r} cannot be made ({problem}); num_heads is the one argument given."
        ) from problem
    return made


def alpha_of(
    normalizer: Normalizer,
    wish: float | str | LearnedAlpha | None,
    heads: int,
    *,
    tied: bool = False,
    init: float | str = "random",
) -> LearnedAlpha | float | None:
    """The alpha of an attention layer: a wish ("learned", a number, one shared with others), else the normaliser's own."""
    if wish is None:
        wish = normalizer.alpha
    elif not normalizer.learns_alpha:
        raise ArgumentError(f'normalizer="{normalizer.name}" has no alpha to set; leave alpha out, or choose "entmax".')
    if isinstance(wish, LearnedAlpha):
        if wish.num_heads != heads:
            raise ArgumentError(f"the shared alpha gives {wish.num_heads} values, but there are {heads} heads.")
        return wish
    if wish == "learned":
        return LearnedAlpha(heads, tied=tied, init=init)
    if isinstance(wish, str):
        raise ArgumentError(f'alpha={wish!r} is not known; give "learned" or a number of at least 1.')
    if wish is not None and not 1.0 <= wish < float("inf"):
        raise ArgumentError(f"alpha={wish} must be a finite number of at least 1; 1 is softmax.")
    return wish
