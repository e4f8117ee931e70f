"""The registry of normalizers: functions that turn a row of scores into attention weights, by name, with their properties.

A new normalizer is one entry here: the kernel that computes it, its alpha, and the modules it needs. One of your own needs no
entry: `package.module:Name` is a module class, or a function, that computes weights from scores (see `nn/dense.py`).
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from entformer.errors import ArgumentError
from entformer.nn.alpha import LearnedAlpha, check_init
from entformer.nn.normalizer_functions import (
    AdaptiveSpan,
    AdaptiveTemperature,
    Elementwise,
    NormalizerFn,
    ReluN,
    Sigmoid,
    Softmax1,
    StickBreaking,
    TopK,
)

__all__ = ["NORMALIZERS", "Normalizer", "get_normalizer", "make_normalizer_fn", "resolve_alpha"]


@dataclass(frozen=True)
class Normalizer:
    """Properties of one normalizer, independent of the scores."""

    name: str
    about: str  # its equation in a line
    kernel: str | None  # its name in `entformer.attention`; None: `make_fn` makes the function that computes it
    alpha: float | Literal["learned"] | None  # the default alpha; None: it has none
    learns_alpha: bool = False  # another alpha may be chosen, or learned
    sums_to_one: bool = True
    exact_zeros: bool = True
    signed: bool = False  # weights may be negative
    uses_positions: bool = False  # the weights depend on the positions of the keys, so it needs self-attention
    causal_only: bool = False  # keys after the query get no weight, whatever the mask
    needs_output_norm: bool = False  # the size of its output grows with the number of keys: output_norm is "gated" by default
    scaling: str | None = None  # the scaling of queries it needs, a name of `nn/scaling.py`
    make_fn: Callable[..., NormalizerFn] | None = None  # (num_heads, **options) -> a normalizer function
    options: tuple[str, ...] = ()  # keyword arguments of `make_fn`, given as `normalizer_options`


def _dense(name: str, about: str, make_fn: Callable[..., NormalizerFn], **traits: Any) -> Normalizer:
    return Normalizer(name, about, kernel=None, alpha=None, make_fn=make_fn, **traits)


def _elementwise(name: str, _heads: int) -> NormalizerFn:
    return Elementwise(name)


_UNBOUNDED: dict[str, Any] = {"sums_to_one": False, "exact_zeros": False, "needs_output_norm": True}

NORMALIZERS: dict[str, Normalizer] = {
    entry.name: entry
    for entry in (
        Normalizer("softmax", "exp(s) / sum exp(s)", kernel="softmax", alpha=1.0, exact_zeros=False),
        Normalizer("entmax15", "alpha-entmax with alpha = 1.5", kernel="entmax15", alpha=1.5),
        Normalizer("sparsemax", "alpha-entmax with alpha = 2", kernel="sparsemax", alpha=2.0),
        Normalizer(
            "entmax",
            "alpha-entmax, alpha learned per head unless given (Correia et al. 2019)",
            kernel="entmax",
            alpha="learned",
            learns_alpha=True,
        ),
        Normalizer(
            "rela",
            "max(s, 0) with a norm after the heads (Zhang et al. 2021)",
            kernel="rela",
            alpha=None,
            sums_to_one=False,
            needs_output_norm=True,
        ),
        Normalizer(
            "ssmax",
            "softmax(s ln n times a learned number per head) (Nakanishi 2025)",
            kernel="softmax",
            alpha=1.0,
            exact_zeros=False,
            scaling="ssmax",
        ),
        Normalizer(
            "asentmax",
            "1.5-entmax, scores scaled by the length, per head and token (Vasylenko et al. 2025)",
            kernel="entmax",
            alpha=1.5,
            learns_alpha=True,
            scaling="asentmax",
        ),
        Normalizer(
            "softmax_temperature",
            "softmax(q k / theta), theta learned per head unless given",
            kernel="softmax",
            alpha=1.0,
            exact_zeros=False,
            scaling="temperature",
        ),
        _dense("topk", "softmax over the k largest scores", lambda _heads, k=32: TopK(k), options=("k",)),
        _dense(
            "adaptive_temperature",
            "softmax, sharpened in evaluation where its entropy is high (Velickovic et al. 2024)",
            lambda _heads: AdaptiveTemperature(),
            exact_zeros=False,
        ),
        _dense(
            "softmax1",
            "exp(s) / (1 + sum exp(s)), a sink of score 0",
            lambda _heads: Softmax1(),
            sums_to_one=False,
            exact_zeros=False,
        ),
        _dense(
            "stickbreaking",
            "each key takes a fraction of what later keys left (Tan et al. 2024); causal self-attention only",
            lambda _heads, **options: StickBreaking(**options),
            options=("attend_current",),
            sums_to_one=False,
            exact_zeros=False,
            uses_positions=True,
            causal_only=True,
        ),
        _dense(
            "adaptive_span",
            "softmax over a span learned per head (Sukhbaatar et al. 2019); self-attention only",
            AdaptiveSpan,
            options=("max_span", "ramp", "init", "penalty"),
            uses_positions=True,
        ),
        _dense(
            "sigmoid",
            "sigmoid(s - ln n) (Ramapuram et al. 2024)",
            lambda _heads: Sigmoid(),
            sums_to_one=False,
            exact_zeros=False,
        ),
        _dense("relu_n", "max(s, 0) / n (Wortsman et al. 2023)", lambda _heads: ReluN(), sums_to_one=False),
        _dense(
            "relu2",
            "max(s, 0)^2 with ReLA's norm",
            partial(_elementwise, "relu2"),
            **_UNBOUNDED | {"exact_zeros": True},
        ),
        *(
            _dense(name, f"{title} with ReLA's norm", partial(_elementwise, name), **_UNBOUNDED, signed=True)
            for name, title in (("gelu", "gelu(s)"), ("leaky_relu", "s, or 0.01 s below 0,"))
        ),
    )
}


def make_normalizer_fn(normalizer: Normalizer, heads: int, options: Mapping[str, Any] | None = None) -> NormalizerFn | None:
    """Returns the function of a normalizer without a fused kernel, made with its options; None for one with a kernel."""
    unknown = [name for name in options or {} if name not in normalizer.options]
    if unknown:
        known = f"its options are {', '.join(normalizer.options)}" if normalizer.options else "it has none"
        raise ArgumentError(f'normalizer="{normalizer.name}" has no option {unknown[0]!r}; {known}.')
    return None if normalizer.make_fn is None else normalizer.make_fn(heads, **(options or {}))


def get_normalizer(name: str) -> Normalizer:
    """Returns the entry of this name, or a new one for `package.module:Name`."""
    if name in NORMALIZERS:
        return NORMALIZERS[name]
    if ":" in name:
        make_fn = partial(_instantiate, _import(name), name)
        return _dense(name, "your own normalizer", make_fn, sums_to_one=False, exact_zeros=False)
    raise ArgumentError(
        f"normalizer={name!r} is not known; choose one of {', '.join(NORMALIZERS)}, or module:Name for one of your own."
    )


def _import(name: str) -> Any:
    """Imports `package.module:Name`. The working directory is searched too, as with python -m."""
    module, _, attribute = name.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except (ImportError, ValueError) as err:
        raise ArgumentError(f"normalizer={name!r}: the module {module!r} cannot be imported ({err}).") from err
    finally:
        if added:
            sys.path.remove(here)
    if not callable(getattr(found, attribute, None)):
        raise ArgumentError(f"normalizer={name!r}: {module!r} has no class or function {attribute!r}.")
    return getattr(found, attribute)


def _instantiate(found: Any, name: str, heads: int) -> NormalizerFn:
    """Calls a class without arguments, or with num_heads if it has such a parameter; returns a function unchanged."""
    made: NormalizerFn = found
    if not isinstance(found, type):
        return made
    make: Callable[..., Any] = found
    try:
        made = make(num_heads=heads) if "num_heads" in inspect.signature(make).parameters else make()
    except TypeError as err:
        raise ArgumentError(f"normalizer={name!r} cannot be created ({err}); num_heads is the only argument given.") from err
    return made


def resolve_alpha(
    normalizer: Normalizer, requested: float | str | LearnedAlpha | None, heads: int, options: dict[str, Any]
) -> LearnedAlpha | float | None:
    """Returns the alpha of an attention layer: the requested one ("learned", a number, a shared one), else the normalizer's.

    `options` are those of a new `LearnedAlpha`.
    """
    if requested is None:
        requested = normalizer.alpha
    elif not normalizer.learns_alpha:
        raise ArgumentError(f'normalizer="{normalizer.name}" has no alpha to set; remove alpha, or choose "entmax".')
    if isinstance(requested, LearnedAlpha):
        if requested.num_heads != heads:
            raise ArgumentError(f"the shared alpha gives {requested.num_heads} values, but there are {heads} heads.")
        return requested
    if requested == "learned":
        check_init("alpha_", options["init"], 1.0, 2.0, options["parametrization"])
        return LearnedAlpha(heads, **options)
    if isinstance(requested, str):
        raise ArgumentError(f'alpha={requested!r} is not known; give "learned" or a number of at least 1.')
    if requested is not None and not 1.0 <= requested < float("inf"):
        raise ArgumentError(f"alpha={requested} must be a finite number of at least 1; 1 is softmax.")
    return requested
