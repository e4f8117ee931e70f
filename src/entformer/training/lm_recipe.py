"""The recipe of a run that trains a language model: `LMRecipe`.

name, task: language_modeling, data (which text), model (which decoder), training (how)
"""

import dataclasses
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from entformer.data.text import BUILTIN, TextConfig
from entformer.models.lm_config import LMAttentionConfig, LMConfig
from entformer.training.effects import Ineffective, Place, position_settings, without_effect_on_training
from entformer.training.recipe import PARAMETRIZATION, UNKNOWN_VOCABULARY, RunRecipe, Section, TrainingConfig, learns_alpha


def _paths(given: Any) -> Any:
    return (given,) if isinstance(given, str | Path) else () if given is None else given


Paths = Annotated[tuple[Path, ...], BeforeValidator(_paths)]


class TextData(Section):
    """The text: `corpus: builtin`, `text` (files), or `prepared` (a directory of `entformer prep --text`)."""

    corpus: Literal["builtin"] | None = Field(default=None, description="The text that comes with entformer.")
    prepared: Path | None = Field(default=None, description="Prepared directory; created if it is missing.")
    text: Paths = Field(default=(), description="Files of training text, plain or .gz.")
    valid: Paths = Field(default=(), description="Files of validation text; without them, see split.")
    test: Paths = ()
    tokenizer: Literal["bpe", "bytes"] = "bpe"
    vocab_size: int = Field(default=8000, description="Size of the vocabulary of bpe.")
    subwords: Path | None = Field(default=None, description="Vocabulary of an earlier run to use instead of learning one.")
    documents: Literal["file", "paragraph", "line"] = Field(default="file", description="What a document is.")
    split: Literal["position", "document"] = Field(
        default="position", description="Validation text: the end of every document, or whole documents."
    )
    valid_share: float = Field(default=0.05, gt=0, lt=1, description="Share of the text that split sets aside.")
    seed: int = Field(default=1, ge=0)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.corpus and self.text:
            raise ValueError("give corpus or text, not both")
        self.config()
        return self

    def config(self) -> TextConfig:
        """Returns the settings of `prepare_text`."""
        return TextConfig(**{field.name: getattr(self, field.name) for field in dataclasses.fields(TextConfig)})


class LMTraining(TrainingConfig):
    """Training settings of language models."""

    context: int = Field(default=256, ge=2, description="Tokens of a row: the length at which the model is trained.")
    metric: Literal["loss", "accuracy"] = Field(default="loss", description="Metric that selects the best checkpoint.")
    validate_beam: Literal[0] = Field(default=0, description="Of translation.")
    alpha_lr_factor: float = Field(default=1.0, ge=0, description="Learning rate of the alphas, as a multiple of lr.")


def expand_lm(given: Any) -> Any:
    """Adds what a recipe leaves to the data: the size of the vocabulary, and the form of learned alphas."""
    if not isinstance(given, dict):
        return given
    if "vocab_size" in given:
        raise ValueError("vocab_size belongs in data: the tokenizer decides it")
    attention = given.get("attention") or {}
    if isinstance(attention, dict):
        attention = LMAttentionConfig.upgrade({"normalizer": "entmax", **attention})
        if learns_alpha(attention):
            attention = {"alpha_parametrization": PARAMETRIZATION, **attention}
    return {"vocab_size": UNKNOWN_VOCABULARY, **given, "attention": attention}


class LMRecipe(RunRecipe):
    """All settings of a run that trains a language model."""

    task: Literal["language_modeling"] = "language_modeling"
    data: TextData = Field(default_factory=TextData)
    model: Annotated[LMConfig, BeforeValidator(expand_lm)] = Field(default_factory=lambda: LMConfig.from_dict(expand_lm({})))
    training: LMTraining = Field(default_factory=LMTraining)

    def model_for(self, vocab_size: int) -> LMConfig:
        """Returns the model configuration for a vocabulary size."""
        return dataclasses.replace(self.model, vocab_size=vocab_size)

    def without_effect(self) -> list[Ineffective]:
        found: list[Ineffective] = []

        def add(section: str, names: tuple[str, ...], reason: str, *causes: Place) -> None:
            found.extend(Ineffective((section, name), causes, reason) for name in names)

        data = self.data
        if data.corpus == BUILTIN:
            brings = "the built-in text brings its own splits; leave it out"
            add("data", ("valid", "test", "documents", "split", "valid_share"), brings, ("data", "corpus"))
        elif data.valid:
            add("data", ("split", "valid_share"), "there are validation files; leave it out", ("data", "valid"))
        if data.tokenizer == "bytes":
            add("data", ("vocab_size", "subwords"), "the tokenizer is bytes; leave it out", ("data", "tokenizer"))
        elif data.subwords is not None:
            add("data", ("vocab_size",), f"the vocabulary is that of {data.subwords}; leave it out", ("data", "subwords"))
        if not self.model.attention.learned:
            reason = f"{self.model.attention.normalizer} learns no alpha; leave it out, or set alpha: learned"
            causes: tuple[Place, ...] = tuple(("model", "attention", key) for key in ("normalizer", "alpha"))
            for key in ("alpha_tied", "alpha_init", "alpha_parametrization"):
                found.append(Ineffective(("model", "attention", key), causes, reason))
        elif self.model.attention.alpha_tied == "across_kinds":
            reason = "a decoder has one attention type; tie by head, layer or kind"
            found.append(Ineffective(("model", "attention", "alpha_tied"), (), reason))
        add("training", ("validate_beam", "max_sentences"), "it is a setting of translation; leave it out")
        return [*found, *position_settings(self.model), *without_effect_on_training(self)]

    def resolved(self) -> dict[str, Any]:
        values = super().resolved()
        del values["model"]["vocab_size"]
        return values
