"""Scores of translations by sacreBLEU, each with its signature.

    BLEU             13a tokenization: comparable between papers if the text is detokenized
    chrF             character n-grams, chrF2
    tokenized BLEU   no tokenization: for text that is tokenized already, which 13a would tokenize once more
    Moses BLEU       both sides tokenized by Moses' rules (sacremoses) first: what papers before sacreBLEU call tokenized BLEU

Case counts unless the text is lower-cased; then BLEU (except the first) is lower-cased on both sides, and its title and
signature (case:lc) say so. A number never goes without its signature: it says how it was computed, and numbers with other
signatures are not comparable. The paired bootstrap is sacreBLEU's own (`sacrebleu --paired-bs`, Koehn 2004), so its p-values
can be checked with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.significance import PairedTest

from entformer.errors import ArgumentError, DataError

TITLES = {
    "bleu": "BLEU",
    "chrf": "chrF",
    "tokenized_bleu": "tokenized BLEU",
    "moses_bleu": "Moses-tokenized BLEU",
    "lowercase_bleu": "BLEU",
}
MEANINGS = {
    "bleu": "sacreBLEU's 13a tokenization; for detokenized text",
    "chrf": "characters",
    "tokenized_bleu": "tokens as they are in the text",
    "moses_bleu": "Moses' tokenization of both sides, the tokenized BLEU of papers before sacreBLEU",
    "lowercase_bleu": "sacreBLEU's 13a tokenization; for lower-cased text",
}
SPECIAL = ("tokenized_bleu", "moses_bleu", "lowercase_bleu")  # scores that fit certain data better than plain BLEU
UNSPACED = ("ja", "zh", "yue", "th", "lo", "km", "my")  # languages without spaces between words, which Moses cannot tokenize
RESAMPLES = 1000


def title(name: str, signature: str) -> str:
    """Return what people call a score: "tokenized lower-case BLEU"."""
    found = TITLES[name]
    return found.replace("BLEU", "lower-case BLEU") if "case:lc" in signature else found


@dataclass(frozen=True)
class Score:
    """One number and how it was computed."""

    name: str  # a key of TITLES
    value: float  # 0 to 100
    signature: str
    detail: str  # n-gram precisions and lengths of BLEU, empty for others

    def __str__(self) -> str:
        return f"{title(self.name, self.signature)} = {self.value:.2f}"


@dataclass(frozen=True)
class Scores:
    """All scores of one set of translations."""

    lines: int
    scores: tuple[Score, ...]

    @property
    def main(self) -> Score:
        """The number to quote: BLEU, in the variant that fits the data."""
        return next((score for score in self.scores if score.name in SPECIAL), self.scores[0])

    @property
    def bleu(self) -> float:
        return self["bleu"].value

    @property
    def chrf(self) -> float:
        return self["chrf"].value

    def __getitem__(self, name: str) -> Score:
        for score in self.scores:
            if score.name == name:
                return score
        raise KeyError(name)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: each number beside its signature, and `main` says which to quote."""
        return {
            "lines": self.lines,
            "main": self.main.name,
            "scores": {
                score.name: {"score": score.value, "signature": score.signature}
                | ({"detail": score.detail} if score.detail else {})
                for score in self.scores
            },
        }


@dataclass(frozen=True)
class Comparison:
    """One metric of two systems under the paired bootstrap."""

    name: str
    baseline: float
    system: float
    p_value: float  # how often rng alone would give a difference this large
    baseline_interval: tuple[float, float]  # mean of the resamples, half the width of their 95% interval
    system_interval: tuple[float, float]
    signature: str

    @property
    def difference(self) -> float:
        return self.system - self.baseline

    def as_dict(self) -> dict[str, Any]:
        return {
            "baseline": self.baseline,
            "system": self.system,
            "difference": self.difference,
            "p_value": self.p_value,
            "baseline_mean": self.baseline_interval[0],
            "baseline_ci95": self.baseline_interval[1],
            "system_mean": self.system_interval[0],
            "system_ci95": self.system_interval[1],
            "signature": self.signature,
        }


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenized: bool = False,
    lowercase: bool = False,
    moses: str | None = None,
) -> Scores:
    """Score translations.

    Args:
        hypotheses: one line each; empty ones count as they are.
        references: a line for each hypothesis; or several lists of lines, one for each set of references.
        tokenized: the text is tokenized: give tokenized BLEU too, and let it be the main score.
        lowercase: the text is lower-cased: the main score is lower-case BLEU, tokenized or not.
        moses: the language of text that is not tokenized: give Moses-tokenized BLEU too, and let it be the main score.
    """
    streams = _streams(hypotheses, references)
    found = [
        _score(name, metric, *_as_scored(name, hypotheses, streams, moses), moses)
        for name, metric in _metrics(tokenized, lowercase, moses).items()
    ]
    return Scores(len(hypotheses), tuple(found))


def bleu(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenized: bool = False,
    lowercase: bool = False,
) -> Score:
    """BLEU alone, in the variant that fits the data: `corpus_scores(...).main` for a fraction of the time."""
    name, metric = [item for item in _metrics(tokenized, lowercase, None).items() if item[0] != "chrf"][-1]
    return _score(name, metric, hypotheses, _streams(hypotheses, references), None)


def _score(
    name: str, metric: BLEU | CHRF, hypotheses: Sequence[str], streams: Sequence[Sequence[str]], moses: str | None
) -> Score:
    score = metric.corpus_score(hypotheses, streams)
    detail = _detail(score) if isinstance(metric, BLEU) else ""
    return Score(name, float(score.score), _signature(name, str(metric.get_signature()), moses), detail)


def _signature(name: str, signature: str, moses: str | None) -> str:
    """sacreBLEU's signature, with the tokenizer that ran before it."""
    if name != "moses_bleu":
        return signature
    return signature.replace("tok:none", f"tok:moses.{moses}-sacremoses.{version('sacremoses')}")


def _as_scored(
    name: str, hypotheses: Sequence[str], streams: Sequence[Sequence[str]], moses: str | None
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The text as a metric takes it: tokenized for "moses_bleu"."""
    if name != "moses_bleu" or moses is None:
        return hypotheses, streams
    return moses_tokenized(hypotheses, moses), [moses_tokenized(stream, moses) for stream in streams]


def moses_tokenized(lines: Sequence[str], language: str) -> list[str]:
    """Tokenize lines by the rules of Moses' tokenizer.perl, without escaping characters of XML."""
    from sacremoses import MosesTokenizer  # takes a moment to load, and few need it

    short = language.lower().replace("_", "-").split("-")[0]
    if short in UNSPACED:
        raise ArgumentError(f"Moses' tokenizer does not know {language}, which has no spaces between words; leave --moses out.")
    tokenizer = MosesTokenizer(lang=short)
    return [tokenizer.tokenize(line, return_str=True, escape=False) for line in lines]


def compare(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenized: bool = False,
    lowercase: bool = False,
    moses: str | None = None,
    resamples: int = RESAMPLES,
) -> tuple[Comparison, ...]:
    """Is the second system better than the first, or is it rng? Paired bootstrap over the lines."""
    if resamples < 1:
        raise ArgumentError(f"resamples={resamples} must be at least 1.")
    streams = _streams(baseline, references)
    _streams(system, references)
    found = []
    for name, metric in _metrics(tokenized, lowercase, moses).items():
        # One metric at a time: sacreBLEU keys its results by "BLEU", which two of ours share.
        first_lines, scored = _as_scored(name, baseline, streams, moses)
        second_lines, _ = _as_scored(name, system, streams[:0], moses)
        systems: list[tuple[str, Sequence[str]]] = [("baseline", first_lines), ("system", second_lines)]
        test = PairedTest(systems, {name: metric}, scored, test_type="bs", n_samples=resamples)
        signatures, results = test()
        [(title, signature)] = signatures.items()
        first, second = (_known(result) for result in results[title])
        found.append(
            Comparison(
                name,
                first.score,
                second.score,
                1.0 if first.score == second.score else second.p_value,  # sacreBLEU calls "no difference" significant
                (first.mean, first.ci),
                (second.mean, second.ci),
                _signature(name, str(signature), moses),
            )
        )
    return tuple(found)


def _detail(score: Any) -> str:
    """n-gram precisions, brevity penalty and lengths, as people know them from multi-bleu."""
    precisions = "/".join(f"{precision:.1f}" for precision in score.precisions)
    return f"{precisions} (BP = {score.bp:.3f}, {score.sys_len} tokens for {score.ref_len} of the references)"


def scoring_warnings(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenized: bool = False, lowercase: bool = False
) -> list[str]:
    """What makes the numbers doubtful, one sentence each."""
    found = []
    sides = (("the translations", hypotheses), ("the references", references))
    lower = {what for what, lines in sides if _all_lower(lines)}
    for what, lines in sides:
        count = len(lines)
        pieces = sum("▁" in line for line in lines)
        if pieces:
            found.append(
                f"{what} hold '▁' in {pieces} of {count} lines: these are subwords, not text; join them before scoring."
            )
        joined = sum("@@ " in line or line.endswith("@@") for line in lines)
        if joined:
            found.append(
                f"{what} hold '@@' in {joined} of {count} lines: these are BPE pieces, not text; join them before scoring."
            )
        if what in lower and not lowercase and not (tokenized and len(lower) == 2):
            found.append(
                f"{what} are all in lower case: cased BLEU of such text cannot be compared with published numbers; "
                "use --lowercase, with --tokenized if they are tokenized too."
            )
        if not tokenized and look_tokenized(lines):
            found.append(
                f"{what} look tokenized (a space before the full stop): BLEU 13a expects detokenized text; use --tokenized to "
                "score them as they are."
            )
    empty = sum(not line.strip() for line in hypotheses)
    if empty and empty > sum(not line.strip() for line in references):
        found.append(f"{empty} of {len(hypotheses)} translations are empty.")
    return found


def _all_lower(lines: Sequence[str]) -> bool:
    """Whether there are lines in a script with two cases, and all of them are in lower case."""
    letters = [line for line in lines if line.upper() != line.lower()]
    return bool(letters) and all(line == line.lower() for line in letters)


def look_tokenized(lines: Sequence[str]) -> bool:
    """Whether most lines that end a sentence have a space before the mark."""
    ending = [line.rstrip() for line in lines if line.rstrip().endswith((".", "?", "!"))]
    return len(ending) > 0 and sum(line[-2:-1] == " " for line in ending) > len(ending) / 2


def _metrics(tokenized: bool, lowercase: bool, moses: str | None) -> dict[str, BLEU | CHRF]:
    if tokenized and moses is not None:
        raise ArgumentError("the text is tokenized already; leave --moses out, or add --no-tokenized if it is not.")
    metrics: dict[str, BLEU | CHRF] = {
        "bleu": BLEU(force=True),
        "chrf": CHRF(),
    }  # force: language_warnings are said by `scoring_warnings`
    if tokenized:
        metrics["tokenized_bleu"] = BLEU(tokenize="none", lowercase=lowercase, force=True)
    elif moses is not None:
        metrics["moses_bleu"] = BLEU(tokenize="none", lowercase=lowercase, force=True)
    elif lowercase:
        metrics["lowercase_bleu"] = BLEU(lowercase=True, force=True)
    return metrics


def _streams(hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """References as sacreBLEU takes them, as many lines as there are hypotheses. It would drop the rest without a word."""
    streams: list[Any] = [references] if not references or isinstance(references[0], str) else list(references)
    for stream in streams:
        if len(stream) != len(hypotheses):
            raise DataError(
                f"there are {len(hypotheses)} translations and {len(stream)} references; "
                "they must be the same lines, one for one."
            )
    if not hypotheses:
        raise DataError("there is nothing to score: both sides are empty.")
    return streams


@dataclass(frozen=True)
class _Known:
    score: float
    p_value: float
    mean: float
    ci: float


def _known(result: Any) -> _Known:
    """sacreBLEU leaves p of the baseline open."""
    p_value = 1.0 if result.p_value is None else float(result.p_value)
    return _Known(float(result.score), p_value, float(result.mean), float(result.ci))
