"""Which settings of a recipe cannot take effect, and why.

A setting that was given and changes nothing is an error: the run would not be what the recipe says. Defaults are not settings.
Resolved recipes skip what has no effect, so that they can be read again. Recipes are `Any` here because `training/recipe.py`
imports this module.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from entformer.data import datasets
from entformer.data.texts import is_tsv

Place = tuple[str | int, ...]
KINDS = ("encoder", "decoder", "cross")
BUILTIN = "builtin"


@dataclass(frozen=True)
class Ineffective:
    """A setting without effect."""

    place: Place
    """Its keys, from the section down."""
    causes: tuple[Place, ...]
    """The settings that keep it from taking effect."""
    reason: str

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.place))} has no effect: {self.reason}."


def without_effect(recipe: Any) -> list[Ineffective]:
    """Returns all values of a translation recipe that change nothing, given or not."""
    return [*_data(recipe.data), *_model(recipe), *without_effect_on_training(recipe), *_decoding(recipe)]


def ineffective(recipe: Any) -> list[Ineffective]:
    """Returns the values without effect that were given."""
    return [one for one in recipe.without_effect() if one.place in recipe.given]


def _each(section: str, names: Iterable[str], reason: str, *causes: str) -> Iterator[Ineffective]:
    for name in names:
        yield Ineffective((section, name), tuple((section, cause) for cause in causes), reason)


def _data(data: Any) -> Iterator[Ineffective]:
    if data.corpus is None and not data.train:
        fields = [field.alias or name for name, field in type(data).model_fields.items()]
        names = [name for name in fields if name not in ("prepared", "corpus", "train")]
        decides = f"the prepared directory {data.prepared} decides it"
        yield from _each("data", names, f"{decides}; leave it out, or name the text to prepare (corpus, or train)", "prepared")
        return
    if data.corpus is not None:
        known = datasets.CORPORA.get(data.corpus)
        pair = f" ({known.source_language}-{known.target_language})" if known is not None else ""
        brings = f"the corpus {data.corpus} brings its own languages and files{pair}"
        names = ["source_language", "target_language", "valid", "test", "columns"]
        yield from _each("data", names, f"{brings}; leave it out, or name your files with train", "corpus")
    if data.corpus == BUILTIN:
        yield from _each("data", ("from", "layout"), "the built-in corpus comes with entformer; leave it out", "corpus")
    else:
        yield from _each("data", ("size",), f"only the corpus {BUILTIN} can be shortened; leave it out", "corpus", "train")
    if data.train:
        yield from _each("data", ("layout",), "only a named corpus has layouts; leave it out", "train")
        if not any(map(is_tsv, (*data.train, *data.valid, *data.test))):
            yield from _each("data", ("columns",), "no text is a .tsv file; leave it out", "train")
    if data.subwords is not None:
        yield from _each("data", ("vocab_size", "seed"), f"the vocabulary is that of {data.subwords}; leave it out", "subwords")


def _model(recipe: Any) -> Iterator[Ineffective]:
    inherit = [kind for kind in KINDS if ("model", kind, "normalizer") not in recipe.given]  # from `attention`
    for where, kinds in {**{kind: [kind] for kind in KINDS}, "attention": inherit}.items():
        configs = [recipe.model.kinds[kind] for kind in kinds]
        if configs and not any(config.learned for config in configs):
            shown = configs[0].normalizer + ("" if configs[0].alpha is None else f" with alpha {configs[0].alpha}")
            reason = f"{shown} learns no alpha; leave it out, or set alpha: learned"
            for key in ("alpha_tied", "alpha_init", "alpha_parametrization"):
                yield Ineffective(("model", where, key), _normalizers("attention", *kinds), reason)
    yield from position_settings(recipe.model)
    if recipe.model.output != "entmax":
        reason = f"the output is {recipe.model.output}; leave it out, or set output: entmax"
        yield from _each("model", ("output_alpha",), reason, "output")


def position_settings(model: Any) -> Iterator[Ineffective]:
    """Yields the settings of position encodings that the model does not have."""
    for kind, names in (("rotary", ("rotary_base",)), ("nape", ("nape_slopes", "nape_share"))):
        if model.positions != kind:
            reason = f"positions are {model.positions}; leave it out, or set positions: {kind}"
            yield from _each("model", names, reason, "positions")


def _normalizers(*sections: str) -> tuple[Place, ...]:
    """Returns the settings that decide whether alphas are learned."""
    return tuple(("model", where, key) for where in sections for key in ("normalizer", "alpha"))


def without_effect_on_training(recipe: Any) -> Iterator[Ineffective]:
    """Yields the values of the training section that change nothing."""
    training = recipe.training
    learned = any(config.learned for config in recipe.model.kinds.values())
    if not learned:
        for key in ("alpha_lr_factor", "alpha_start_step", "alpha_seed", "density_target"):
            reason = "no attention learns its alpha; leave it out"
            yield Ineffective(("training", key), _normalizers("attention", *KINDS), reason)
    if training.density_target is None or not learned:
        reason = "there is no density_target; leave it out, or set density_target"
        yield from _each("training", ("density_start_step", "max_loss_increase", "reference_run"), reason, "density_target")
    elif training.max_loss_increase is None:
        reason = "max_loss_increase is not set; leave it out, or set max_loss_increase"
        yield from _each("training", ("reference_run",), reason, "max_loss_increase")
    if training.average == "none":
        yield from _each("training", ("average_count",), "average is none; leave it out, or set average: last", "average")


def _decoding(recipe: Any) -> Iterator[Ineffective]:
    if recipe.decoding.length_penalty == "none":
        reason = "length_penalty is none; leave it out, or set length_penalty: average"
        yield from _each("decoding", ("length_penalty_alpha",), reason, "length_penalty")
