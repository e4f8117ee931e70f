"""Which settings of a recipe cannot take effect, and why.

A setting that the user wrote and that changes nothing is a mistake: the run would not be what the recipe says. Defaults are
no settings. Resolved recipes leave out what has no effect, so that they can be read again. Recipes are `Any` here because
`training/recipe.py` imports this module.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from entformer.data import datasets
from entformer.data.texts import is_tsv

Place = tuple[str | int, ...]
KINDS = ("encoder", "decoder", "cross")
BUILTIN = "builtin"
OF_CORPUS = ("source_language", "target_language", "valid", "test", "columns")


@dataclass(frozen=True)
class Ineffective:
    """A setting without effect."""

    place: Place
    """Its keys, from the section down."""
    causes: tuple[Place, ...]
    """The settings that keep it from taking effect."""
    reason: str


def without_effect(recipe: Any) -> list[Ineffective]:
    """Return all values that change nothing, set or not."""
    return [*_data(recipe.data), *_model(recipe), *_training(recipe)]


def ineffective(recipe: Any) -> list[Ineffective]:
    """Return the values without effect that somebody set; null and empty lists set nothing."""
    found = [one for one in without_effect(recipe) if _is_set(recipe, one.place)]
    return [one for one in found if not _effective_elsewhere(recipe, one, found)]


def sentence(one: Ineffective) -> str:
    """Say what has no effect and why, without the place."""
    return f"{'.'.join(map(str, one.place))} has no effect: {one.reason}."


def _data(data: Any) -> Iterator[Ineffective]:
    names = [field.alias or name for name, field in type(data).model_fields.items()]
    if data.corpus is None and not data.train:
        reason = f"the prepared folder {data.prepared} decides it; leave it out, or name the text to prepare (corpus, or train)"
        yield from _each(names, reason, ("prepared",), besides=("prepared", "corpus", "train"))
        return
    if data.corpus is not None:
        known = datasets.CORPORA.get(data.corpus)
        pair = f" ({known.source_language}-{known.target_language})" if known is not None else ""
        reason = (
            f"the corpus {data.corpus} brings its own languages and files{pair}; leave it out, or name your files with train"
        )
        yield from _each(OF_CORPUS, reason, ("corpus",))
    if data.corpus == BUILTIN:
        yield from _each(("from", "layout"), "the built-in corpus comes with entformer; leave it out", ("corpus",))
    else:
        yield from _each(("size",), f"only the corpus {BUILTIN} can be shortened; leave it out", ("corpus", "train"))
    if data.train:
        yield from _each(("layout",), "only a named corpus has layouts; leave it out", ("train",))
        if not any(map(is_tsv, (*data.train, *data.valid, *data.test))):
            yield from _each(("columns",), "no text is a .tsv file; leave it out", ("train",))
    if data.subwords is not None:
        reason = f"the vocabulary is that of {data.subwords}; leave it out"
        yield from _each(("vocab_size", "seed"), reason, ("subwords",))


def _each(
    names: Any, reason: str, causes: tuple[str, ...], *, section: str = "data", besides: tuple[str, ...] = ()
) -> Iterator[Ineffective]:
    for name in names:
        if name not in besides:
            yield Ineffective((section, name), tuple((section, cause) for cause in causes), reason)


def _model(recipe: Any) -> Iterator[Ineffective]:
    for kind in KINDS:
        attention = getattr(recipe.model, kind)
        if not attention.learned:
            shown = attention.normalizer if attention.alpha is None else f"{attention.normalizer} with alpha {attention.alpha}"
            causes: tuple[Place, ...] = tuple(
                ("model", where, key) for where in (kind, "attention") for key in ("normalizer", "alpha")
            )
            for key in ("alpha_tied", "alpha_init", "alpha_parametrization"):
                yield Ineffective(("model", kind, key), causes, f"{shown} learns no alpha; leave it out, or set alpha: learned")
    if recipe.model.output != "entmax":
        reason = f"the output is {recipe.model.output}; leave it out, or set output: entmax"
        yield Ineffective(("model", "output_alpha"), (("model", "output"),), reason)


def _training(recipe: Any) -> Iterator[Ineffective]:
    if not any(getattr(recipe.model, kind).learned for kind in KINDS):
        causes: tuple[Place, ...] = tuple(
            ("model", where, key) for where in ("attention", *KINDS) for key in ("normalizer", "alpha")
        )
        for key in ("alpha_lr_factor", "alpha_start_step", "alpha_seed", "density_target"):
            yield Ineffective(("training", key), causes, "no attention learns its alpha; leave it out")
    if recipe.training.density_target is None or not any(getattr(recipe.model, kind).learned for kind in KINDS):
        reason = "there is no density_target; leave it out, or set density_target"
        keys = ("density_start_step", "max_loss_increase", "reference_run")
        yield from _each(keys, reason, ("density_target",), section="training")
    elif recipe.training.max_loss_increase is None:
        reason = "max_loss_increase is not set; leave it out, or set max_loss_increase"
        yield from _each(("reference_run",), reason, ("max_loss_increase",), section="training")
    if recipe.training.average == "none":
        reason = "average is none; leave it out, or set average: last"
        yield from _each(("average_count",), reason, ("average",), section="training")
    if recipe.decoding.length_penalty == "none":
        reason = "length_penalty is none; leave it out, or set length_penalty: average"
        yield from _each(("length_penalty_alpha",), reason, ("length_penalty",), section="decoding")


def _is_set(recipe: Any, place: Place) -> bool:
    if place[0] == "model":
        return place in recipe.model_settings
    here: Any = recipe
    for key in place:
        fields = type(here).model_fields
        name = next((name for name, field in fields.items() if key in (name, field.alias)), str(key))
        if name not in here.model_fields_set:
            return False
        here = getattr(here, name)
    return here is not None and here != ()


def _effective_elsewhere(recipe: Any, one: Ineffective, found: list[Ineffective]) -> bool:
    """Whether a value of `model.attention`, which is written once for all kinds, takes effect in another kind."""
    if len(one.place) != 3 or one.place[0] != "model":
        return False
    places = {other.place for other in found}
    _, kind, key = one.place
    value = getattr(getattr(recipe.model, str(kind)), str(key))
    return any(
        ("model", other, key) not in places
        and ("model", other, key) in recipe.model_settings
        and getattr(getattr(recipe.model, other), str(key)) == value
        for other in KINDS
    )
