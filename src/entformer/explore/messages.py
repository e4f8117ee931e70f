"""Requests and responses of the JSON API.

Everything that does not depend on the model is validated here: sizes, ranges, names. A head is named
"attention type.layer.head", such as "cross.1.2": encoder and decoder are self-attention; layers and heads count from 0.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

CHARACTERS = 4000  # of a sentence
IDS = 100_000  # of subwords in a request; the model's own limit is far below
WIDEST_BEAM = 10
MOST_OVERRIDES = 4096
NEW_TOKENS, MOST_NEW_TOKENS = 16, 256  # of a continuation
LOWEST_ALPHA, HIGHEST_ALPHA = 1.0, 4.0

HeadName = Annotated[str, StringConstraints(pattern=r"^(encoder|decoder|cross)\.[0-9]{1,3}\.[0-9]{1,3}$")]
Alpha = Annotated[float, Field(ge=LOWEST_ALPHA, le=HIGHEST_ALPHA, allow_inf_nan=False)]
Text = Annotated[str, StringConstraints(max_length=CHARACTERS)]
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=CHARACTERS)]


class _Request(BaseModel):
    """An unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Search(_Request):
    """What to translate, and how."""

    text: Sentence = Field(description="One sentence in the source language, as for `entformer translate`.")
    alphas: dict[HeadName, Alpha] = Field(
        default_factory=dict,
        max_length=MOST_OVERRIDES,
        description="Another alpha for some heads, for this request only: 1 is softmax, 2 sparsemax.",
    )
    beam: int = Field(5, ge=1, le=WIDEST_BEAM, strict=True, description="Hypotheses kept alive; 1 is greedy search.")
    prefix: Text = Field("", description="What the translation must begin with.")
    new_tokens: int | None = Field(
        None, ge=1, le=MOST_NEW_TOKENS, strict=True, description=f"Tokens to continue a text by; {NEW_TOKENS} if null."
    )
    temperature: float = Field(
        0.0,
        ge=0.0,
        le=10.0,
        allow_inf_nan=False,
        description="Of models that continue text: above 0, tokens are sampled with this temperature, and there is no beam.",
    )
    seed: int = Field(1, ge=0, lt=2**31, strict=True, description="Of samples; the same seed gives the same text.")


class TranslateRequest(Search):
    """A sentence to translate."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"text": "A man is reading a book.", "n_best": 3, "alphas": {"cross.1.0": 1.0}}]}
    )

    n_best: int = Field(1, ge=1, le=WIDEST_BEAM, strict=True, description="Number of translations, at most the beam.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.n_best > self.beam:
            raise ValueError(f"n_best={self.n_best} must be at most beam={self.beam}")
        return self


class AttentionRequest(Search):
    """A sentence whose attention to return: on its best translation, or on a given target."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"text": "A man is reading a book."}, {"text": "A dog runs.", "target": "Ein Hund."}]}
    )

    target: Sentence | None = Field(None, description="The translation to read.")
    target_ids: Annotated[list[Annotated[int, Field(strict=True, ge=0)]], Field(max_length=IDS)] | None = Field(
        None, description="The same as ids of subwords, as returned by `/api/translate`."
    )
    heads: Annotated[list[HeadName], Field(min_length=1, max_length=MOST_OVERRIDES)] | None = Field(
        None, description="Return the weights of these heads only."
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        given = [name for name in ("target", "target_ids", "prefix") if getattr(self, name) not in (None, "")]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given; pass one of target, target_ids and prefix")
        return self


class Candidate(BaseModel):
    """One translation."""

    text: str
    score: float | None = Field(description="log_prob per token; what candidates are compared by. null: not possible at all.")
    log_prob: float | None = Field(description="Natural logarithm of its probability, end included.")
    finished: bool = Field(description="false: cut at the length limit, as most continuations are.")
    pieces: list[str] = Field(description="Its subwords, without start and end.")
    ids: list[int] = Field(description="Their ids, for `target_ids`.")


class TranslateAnswer(BaseModel):
    """Translations of one sentence, the best first."""

    source: list[str] = Field(description="The subwords the model read, end included.")
    candidates: list[Candidate]
    notes: list[str] = Field(description="Warnings about the input or the translation.")
    milliseconds: float


class HeadWeights(BaseModel):
    """Weights of one head as compressed sparse rows.

    Query i gives weight[crow[i]:crow[i+1]] to the keys col[crow[i]:crow[i+1]], and exactly 0 to all others.
    """

    crow: list[int]
    col: list[int]
    weight: list[float] = Field(description="Four significant digits.")


class Alternative(BaseModel):
    """An alternative token."""

    piece: str
    probability: float


class Step(BaseModel):
    """How one token of the target was predicted. Row i of decoder and cross heads belongs to step i."""

    piece: str
    probability: float = Field(description="Of this token, given all before it.")
    best: list[Alternative] = Field(description="The most probable tokens at this step.")


class AttentionAnswer(BaseModel):
    """Every head while the model reads a sentence and its translation."""

    source: list[str] = Field(description="Subwords of the source, end included: the keys of encoder and cross heads.")
    target: list[str] = Field(
        description="Subwords of the target from start to end. The decoder reads all but the last: row i attends when "
        "target[i + 1] is predicted."
    )
    source_text: str
    target_text: str
    heads: dict[str, HeadWeights]
    alphas: dict[str, float | None] = Field(description="The alpha each head had here; null where there is none (ReLA).")
    measures: dict[str, dict[str, float]] = Field(description="Measures of each head on this sentence, by name.")
    steps: list[Step]
    unknown: list[str] = Field(
        default=[], description="Words of the sentence that are not in the training data, where it is known."
    )
    omitted: list[str] = Field(description="Heads dropped because the response would be too large; request them by name.")
    notes: list[str]
    milliseconds: float


class HeadFacts(BaseModel):
    """One head."""

    attn_type: Literal["encoder", "decoder", "cross"]
    layer: int
    head: int
    alpha: float | None = Field(description="As trained; null where there is none (ReLA).")
    adjustable: bool = Field(description="Whether `alphas` may name it.")


class Limits(BaseModel):
    """The limits of a request."""

    characters: int
    tokens: int = Field(description="Subwords of the source.")
    target_tokens: int = Field(description="Subwords of a given target.")
    beam: int
    n_best: int
    alpha: tuple[float, float] = Field(description="The lowest and the highest alpha.")
    seconds: float = Field(description="A request that takes longer is stopped.")


class MeasureFacts(BaseModel):
    """One measure and how to show it."""

    name: str
    title: str
    label: str
    text: str
    format: Literal["alpha", "percent", "number"]
    digits: int
    lower_is_better: bool


class MeasureLists(BaseModel):
    """The measures of heads."""

    heads: list[MeasureFacts]


class ModelFacts(BaseModel):
    """The model, its heads and the limits."""

    name: str
    task: Literal["translation", "generation"] = Field("translation", description="Whether text is translated or continued.")
    languages: tuple[str, str] = Field(description="From, to; empty for a model that continues text.")
    step: int = Field(description="Training step of the weights.")
    entformer: str
    parameters: int
    vocabulary: int
    normalizers: dict[str, str] = Field(description="For each attention type.")
    lowercase: bool = Field(description="Text is lower-cased before it is read.")
    tokenized: bool = Field(description="Trained on text with spaces between words and punctuation; write it that way.")
    heads: list[HeadFacts]
    measures: MeasureLists = Field(description="The measures that `/api/attention` returns.")
    limits: Limits
    examples: list[str] = Field(description="Example sentences.")
    beam: int = Field(5, description="The beam that the page starts with.")
    training_text: str | None = Field(None, description="How much the model was trained on, where it is known.")
    alpha_steps: list[int] | None = Field(None, description="The training steps of `alpha_paths`; null if none were written.")
    alpha_paths: dict[str, list[list[list[float]]]] | None = Field(None, description="Attention type -> layers, heads, steps.")
    alpha_marks: dict[str, str] = Field({}, description="Heads at a bound of alpha, or in the tail of the sigmoid.")
    alpha_sentence: str | None = Field(None, description="What was learned, and what is still the random initialization.")


class Health(BaseModel):
    """The server is running."""

    status: Literal["ok"] = "ok"
    waiting: int = Field(description="Requests waiting for the model.")


class ErrorResponse(BaseModel):
    """Why a request failed."""

    detail: str
