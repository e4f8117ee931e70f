"""The recipe of a training run: `Recipe`, validated and complete.

    name, data (which text), model (which Transformer), training (how), decoding (how validation and tests translate)

Reading files, built-in recipes and `--set` are in `recipe_file.py`, the wording of errors in `recipe_errors.py`.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    field_validator,
    model_validator,
)

from entformer.data.datasets import CORPORA
from entformer.models.config import PRESETS, AttentionConfig, Seq2SeqConfig
from entformer.text.tokenizer import SMALLEST
from entformer.training.effects import BUILTIN, KINDS, Ineffective, Place, without_effect

PARAMETRIZATION = "projected"  # of learned alphas, unless a recipe says otherwise
UNKNOWN_VOCABULARY = 8  # stands in Recipe.model until the subwords are there
TEXT = "a prefix (data/train for data/train.en and data/train.de), a .tsv file, SOURCE,TARGET, or a list of two files"


class Section(BaseModel):
    """A frozen section of a recipe; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


def text_names(given: Any) -> Any:
    """Converts the name of a text to a tuple of names; see `data/texts.py`."""
    names = (given,) if isinstance(given, str | Path) else () if given is None else given
    if not isinstance(names, list | tuple) or not all(isinstance(name, str | Path) and str(name) for name in names):
        raise ValueError(f"give {TEXT}, not {given!r}")
    return tuple(map(str, names))


TextNames = Annotated[tuple[str, ...], BeforeValidator(text_names)]


class DataConfig(Section):
    """The text: `corpus` (a name), `train` and `valid` (files), or `prepared` (a directory of `entformer prep`)."""

    corpus: str | None = Field(default=None, description="A named corpus: builtin, multi30k, iwslt17-de-en, kftt-ja-en, ...")
    from_: str | None = Field(default=None, alias="from", description="Directory or URL with the files of the corpus.")
    layout: str | None = Field(default=None, description="Form of a named corpus, e.g. raw or tok for multi30k.")
    prepared: Path | None = Field(default=None, description="Prepared directory; created if it is missing.")
    train: TextNames = Field(default=(), description="A prefix, SOURCE,TARGET or a .tsv file, as `prep` takes; or two files.")
    valid: TextNames = ()
    test: TextNames = ()
    columns: tuple[int, int] = Field(default=(1, 2), description="Columns of source and target in .tsv files, from 1.")
    source_language: str | None = None
    target_language: str | None = None
    vocab_size: int = Field(default=32000, ge=SMALLEST, description="Size of the joint subword vocabulary.")
    subwords: Path | None = Field(
        default=None, description="SubwordTokenizer of an earlier run to use instead of training new ones."
    )
    max_length: int = Field(default=256, ge=1, description="Drop training pairs with more subwords on either side.")
    max_ratio: float = Field(default=4.0, gt=1, description="Drop training pairs whose lengths differ by a larger factor.")
    lowercase: bool = Field(default=False, description="Lowercase all text.")
    tokenized: bool | None = Field(default=None, description="Whether the text is tokenized; detected if not given.")
    dedup: bool = Field(default=False, description="Drop repeated training pairs.")
    clean: bool = Field(
        default=False, description="Remove control characters and skip malformed rows, which are errors otherwise."
    )
    size: int | None = Field(default=None, ge=10, description="Training pairs of the built-in corpus, at most 9,000.")
    seed: int = Field(default=1, ge=0, description="Seed of the sample from which the vocabulary is learned.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        found = []
        if self.corpus and self.train:
            found.append("give corpus or train, not both")
        if not (self.corpus or self.train or self.prepared):
            found.append("no training text: give corpus, train and valid, or prepared")
        for split in ("valid", "test"):
            if len(getattr(self, split)) > 2:
                found.append(f"{split} takes one text, and {len(getattr(self, split))} names are given")
        if self.train and not self.valid:
            found.append("train needs valid: name the validation files too")
        if self.train and not (self.source_language and self.target_language):
            found.append("train needs source_language and target_language, such as en and de")
        if self.from_ and not self.corpus:
            found.append("from belongs to a named corpus; give corpus too")
        if min(self.columns) < 1 or self.columns[0] == self.columns[1]:
            found.append(f"columns are {list(self.columns)}; give two different ones, counted from 1")
        layouts = [layout.name for layout in CORPORA[self.corpus].layouts] if self.corpus in CORPORA else []
        if layouts and self.layout not in (None, *layouts):
            found.append(f"the corpus {self.corpus} has no layout {self.layout!r}; it has {' and '.join(layouts)}")
        if self.corpus not in (None, BUILTIN, *CORPORA):
            found.append(f"there is no corpus {self.corpus!r}; known are {', '.join((BUILTIN, *CORPORA))}")
        if found:
            raise ValueError("; ".join(found))
        return self


Share = Annotated[float, Field(gt=0, lt=1)]
DensityGoal = Share | Annotated[dict[Literal["encoder", "decoder", "cross"], Share], Field(min_length=1)]


class TrainingConfig(Section):
    """Training settings. The defaults are the paper's: 8192 tokens, 20k warmup steps, inverse square root decay."""

    seed: int = Field(default=1, ge=0)
    steps: int = Field(default=100_000, ge=1, description="Maximum number of optimizer steps.")
    epochs: int | None = Field(default=None, ge=1, description="Maximum number of epochs.")
    tokens: int = Field(default=8192, ge=1, description="Batch size: tokens of the larger side, including padding.")
    accumulate: int = Field(default=1, ge=1, description="Batches per optimizer step.")
    max_sentences: int | None = Field(default=None, ge=1, description="Maximum number of sentences per batch.")
    lr: float = Field(default=6.25e-4, gt=0, description="Peak learning rate.")
    schedule: Literal["inverse_sqrt", "linear", "cosine", "constant"] = "inverse_sqrt"
    warmup: int = Field(default=20_000, ge=0, description="Steps of linear warmup.")
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.98)
    eps: float = Field(default=1e-9, gt=0)
    weight_decay: float = Field(default=0.0, ge=0, description="Decoupled weight decay, for matrices only.")
    alpha_lr_factor: float = Field(default=3.0, ge=0, description="Learning rate of the alphas, as a multiple of lr.")
    alpha_start_step: int = Field(default=0, ge=0, description="First steps, during which the alphas are not trained.")
    alpha_seed: int | None = Field(default=None, ge=0, description="Seed of the random alphas; null: drawn with the weights.")
    density_target: DensityGoal | None = Field(
        default=None, description="Density to reach: of all heads, or of each attention type."
    )
    density_start_step: int = Field(default=0, ge=0, description="First steps, during which density_target has no effect.")
    max_loss_increase: float | None = Field(
        default=None, gt=0, description="How much validation loss density_target may cost: 0.01 is 1% above the reference."
    )
    reference_run: Path | None = Field(
        default=None, description="The run whose losses max_loss_increase refers to; null: the lowest loss of this run so far."
    )
    clip: float | None = Field(default=1.0, gt=0, description="Maximum gradient norm; null: no clipping.")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="float32",
        description="bfloat16: autocast, float32 weights. auto: bfloat16 where it is native.",
    )
    parallel: Literal["auto", "ddp", "fsdp", "sum"] = Field(
        default="auto",
        description="How several processes train. auto: ddp. fsdp: sharded weights. sum: bitwise exact resume.",
    )
    checkpoint_activations: bool = Field(default=False, description="Less memory: layers are computed again in backward.")
    timeout_minutes: float = Field(default=10.0, gt=0, description="How long a process waits for the others in a step.")
    device: str = Field(default="auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description="auto, cpu, cuda, cuda:1, ...")
    validate_every: int = Field(default=1000, ge=1, description="Steps between validations; each saves a checkpoint.")
    validate_beam: int = Field(default=1, ge=0, description="Beam size for validation BLEU; 1: greedy, 0: no BLEU.")
    metric: Literal["bleu", "chrf", "accuracy", "loss"] = Field(
        default="bleu", description="Metric that selects the best checkpoint."
    )
    patience: int | None = Field(default=None, ge=1, description="Stop after this many validations without improvement.")
    save_minutes: float = Field(default=10.0, gt=0, description="Minutes between additional checkpoints.")
    keep_last: int = Field(default=5, ge=1)
    keep_best: int = Field(default=1, ge=1)
    average: Literal["last", "best", "none"] = Field(default="last", description="Checkpoints to average at the end.")
    average_count: int = Field(default=5, ge=1)
    log_every: int = Field(default=100, ge=1, description="Steps between lines of train.log and metrics.jsonl.")
    log_batches: bool = Field(default=False, description="Log the numbers of the examples of every step.")
    tensorboard: bool = False

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.metric in ("bleu", "chrf") and self.validate_beam == 0:
            raise ValueError(
                f"metric is {self.metric} but validate_beam is 0; choose metric: loss or accuracy, or a beam of at least 1"
            )
        return self

    @property
    def kept_last(self) -> int:
        """Number of last checkpoints to keep, including those to average."""
        return max(self.keep_last, self.average_count if self.average == "last" else 1)

    @property
    def kept_best(self) -> int:
        return max(self.keep_best, self.average_count if self.average == "best" else 1)


class DecodingConfig(Section):
    """Settings of beam search with the trained model."""

    beam: int = Field(default=5, ge=1)
    length_penalty: Literal["average", "gnmt", "none"] = "average"
    length_penalty_alpha: float = Field(default=1.0, ge=0, description="Exponent of the length penalty.")

    @model_validator(mode="before")
    @classmethod
    def _old_name(cls, given: Any) -> Any:
        """Accepts the old name `alpha` of the exponent, for runs of earlier versions."""
        if isinstance(given, dict) and "alpha" in given:
            if "length_penalty_alpha" in given:
                raise ValueError("alpha is the old name of length_penalty_alpha; give length_penalty_alpha alone")
            return {"length_penalty_alpha" if key == "alpha" else key: value for key, value in given.items()}
        return given

    @property
    def penalty_alpha(self) -> float | None:
        """The exponent for `beam_search`; None without a penalty."""
        return None if self.length_penalty == "none" else self.length_penalty_alpha


def learns_alpha(attention: dict[str, Any]) -> bool:
    """Returns whether an attention section has a learned alpha."""
    try:
        return AttentionConfig.from_dict({"alpha_parametrization": PARAMETRIZATION, **attention}).learned
    except ValueError:  # reported when the whole recipe is checked
        return False


def as_written(values: Any) -> Any:
    """Returns the recipe of a run directory, with the former default of keys that earlier versions did not write."""
    model = values.get("model") if isinstance(values, dict) else None
    if not isinstance(model, dict):
        return values
    old = {kind: {"alpha_parametrization": "sigmoid", **own} for kind in KINDS if isinstance(own := model.get(kind), dict)}
    return {**values, "model": {**model, **old}}


def expand_model(given: Any) -> Any:
    """Replaces `preset` and `attention` by the fields of Seq2SeqConfig.

    `attention` applies to all three attention types. A type can override some of its values; if it names its own normalizer, it
    takes none of them.
    """
    if not isinstance(given, dict):
        return given
    given = dict(given)
    if "vocab_size" in given:
        raise ValueError("vocab_size belongs in data: the subwords decide it")
    preset = given.pop("preset", None)
    everywhere = given.pop("attention", None) or {}
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"there is no preset {preset!r}; choose {', '.join(PRESETS)}")
    if not isinstance(everywhere, dict):
        raise ValueError("attention must be a mapping, such as {normalizer: entmax, alpha: learned}")
    full: dict[str, Any] = {"vocab_size": UNKNOWN_VOCABULARY, **(PRESETS[preset] if preset else {}), **given}
    for kind in KINDS:
        own = given.get(kind)
        if own is None or (isinstance(own, dict) and "normalizer" not in own):
            full[kind] = {**everywhere, **(own or {})}
        if isinstance(full[kind], dict):
            full[kind] = AttentionConfig.upgrade(full[kind])
            if learns_alpha(full[kind]):
                full[kind] = {"alpha_parametrization": PARAMETRIZATION, **full[kind]}
    if everywhere and all(isinstance(given.get(kind), dict) and "normalizer" in given[kind] for kind in KINDS):
        raise ValueError("attention has no effect: encoder, decoder and cross each name their own normalizer; remove it")
    return full


def _given_keys(values: Any, place: Place) -> Iterator[Place]:
    if isinstance(values, Section):
        values = {name: getattr(values, name) for name in values.model_fields_set}
    if isinstance(values, dict):
        for key, value in values.items():
            if value is not None and value != () and value != []:
                inner = (*place, "from" if key == "from_" else key)
                yield inner
                yield from _given_keys(value, inner)


class RunRecipe(Section):
    """What the recipes of all tasks share; each task adds its data and its model."""

    name: str = Field(default="run", pattern=r"^[\w.-]+$")
    task: str = ""
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    _given: frozenset[Place] = PrivateAttr(default=frozenset())

    @property
    def given(self) -> frozenset[Place]:
        """The settings that were given, each with its sections: ("model", "attention", "alpha"). Null gives nothing."""
        return self._given

    def __eq__(self, other: object) -> bool:
        """Compares the values; which of them were given and which are defaults does not matter."""
        return type(other) is type(self) and all(
            getattr(self, name) == getattr(other, name) for name in type(self).model_fields
        )

    @model_validator(mode="wrap")
    @classmethod
    def _record_settings(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        recipe = handler(values)
        if recipe is not values:
            recipe._given = frozenset(_given_keys(values, ()))
        return recipe

    @field_validator("name")
    @classmethod
    def _not_hidden(cls, name: str) -> str:
        if name.startswith("."):
            raise ValueError("a name must not begin with a dot")
        return name

    def without_effect(self) -> list[Ineffective]:
        """Returns all values that change nothing, given or not."""
        return []

    def resolved(self) -> dict[str, Any]:
        """Returns every value that has an effect, including defaults and presets; loading it gives the same recipe."""
        values = self.model_dump(mode="json", by_alias=True)
        for one in self.without_effect():
            *sections, key = one.place
            here: Any = values
            for section in sections:
                here = here.get(section, {})
            here.pop(key, None)
        return {key: values.pop(key) for key in ("name", "task", "data", "model") if key in values} | values


class Recipe(RunRecipe):
    """All settings of a run that trains a translation model."""

    task: Literal["translation"] = "translation"
    data: DataConfig
    model: Annotated[Seq2SeqConfig, BeforeValidator(expand_model)] = Field(
        default_factory=lambda: Seq2SeqConfig.from_dict(expand_model({}))
    )
    decoding: DecodingConfig = Field(default_factory=DecodingConfig)

    @model_validator(mode="after")
    def _density_can_be_reached(self) -> Self:
        goal = self.training.density_target
        fixed = [kind for kind in goal if not getattr(self.model, kind).learned] if isinstance(goal, dict) else []
        if fixed:
            raise ValueError(f"training.density_target names {fixed[0]}, which learns no alpha; remove it there")
        return self

    def without_effect(self) -> list[Ineffective]:
        return without_effect(self)

    def model_for(self, vocab_size: int) -> Seq2SeqConfig:
        """Returns the model configuration for a vocabulary size."""
        return dataclasses.replace(self.model, vocab_size=vocab_size)

    def resolved(self) -> dict[str, Any]:
        values = super().resolved()
        del values["model"]["vocab_size"]
        return values
