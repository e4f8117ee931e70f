"""Scores of translations by sacreBLEU, each with its signature.

    BLEU             13a tokenization, for detokenized text; comparable between papers
    chrF             character n-grams, chrF2
    tokenized BLEU   no tokenization, for text that is already tokenized
    Moses BLEU       both sides tokenized by Moses' rules (sacremoses), the tokenized BLEU of papers before sacreBLEU

With lowercase text, BLEU (except the first) is computed in lower case, marked case:lc in the signature. Scores with different
signatures are not comparable. The paired bootstrap is sacreBLEU's (`sacrebleu --paired-bs`, Koehn 2004).
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU, BLEUScore
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
SPECIAL = ("tokenized_bleu", "moses_bleu", "lowercase_bleu")  # variants of BLEU for certain data
UNSPACED = ("ja", "zh", "yue", "th", "lo", "km", "my")  # no spaces between words: not supported by Moses
RESAMPLES = 1000
SEED = 12345  # sacreBLEU's


def title(name: str, signature: str) -> str:
    """Returns the common name of a score: "tokenized lower-case BLEU"."""
    found = TITLES[name]
    return found.replace("BLEU", "lower-case BLEU") if "case:lc" in signature else found


@dataclass(frozen=True)
class Score:
    """A score and its signature."""

    name: str  # a key of TITLES
    value: float  # 0 to 100
    signature: str
    detail: str  # n-gram precisions and lengths of BLEU

    def __str__(self) -> str:
        return f"{title(self.name, self.signature)} = {self.value:.2f}"


@dataclass(frozen=True)
class Scores:
    """All scores of one set of translations."""

    lines: int
    scores: tuple[Score, ...]

    @property
    def main(self) -> Score:
        """The score to report: the variant of BLEU for this data."""
        return next((score for score in self.scores if score.name in SPECIAL), self.scores[0])

    @property
    def bleu(self) -> float:
        return self["bleu"].value

    @property
    def chrf(self) -> float:
        return self["chrf"].value

    def __getitem__(self, name: str) -> Score:
        return {score.name: score for score in self.scores}[name]

    def as_dict(self) -> dict[str, Any]:
        """Returns the scores for JSON."""
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
    """A metric of two systems, compared by paired bootstrap. Means and half-widths of 95% intervals are of the resamples."""

    name: str
    baseline: float
    system: float
    difference: float
    difference_low: float  # 95% interval of the difference, from the percentiles of resamples
    difference_high: float
    p_value: float  # probability of a difference this large by chance
    baseline_mean: float
    baseline_ci95: float
    system_mean: float
    system_ci95: float
    signature: str

    def as_dict(self) -> dict[str, Any]:
        """Returns everything but the name, for JSON."""
        return {key: value for key, value in asdict(self).items() if key != "name"}


def corpus_scores(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenized: bool = False,
    lowercase: bool = False,
    moses: str | None = None,
) -> Scores:
    """Scores translations.

    Args:
        hypotheses: One translation per line.
        references: One reference per hypothesis, or several lists of them.
        tokenized: The text is tokenized; adds tokenized BLEU as the main score.
        lowercase: The text is lowercase; the main score is lower-case BLEU.
        moses: Language of untokenized text; adds Moses-tokenized BLEU as the main score.

    Raises:
        DataError: Hypotheses and references differ in number, or there are none.
        ArgumentError: The options contradict each other.
    """
    streams = _streams(hypotheses, references)
    found = []
    for name, metric in _metrics(tokenized, lowercase, moses).items():
        score = metric.corpus_score(*_as_scored(name, hypotheses, streams, moses))
        detail = ""
        if isinstance(score, BLEUScore):  # as multi-bleu writes it
            precisions = "/".join(f"{precision:.1f}" for precision in score.precisions)
            detail = f"{precisions} (BP = {score.bp:.3f}, {score.sys_len} tokens for {score.ref_len} of the references)"
        found.append(Score(name, float(score.score), _signature(name, str(metric.get_signature()), moses), detail))
    return Scores(len(hypotheses), tuple(found))


def _signature(name: str, signature: str, moses: str | None) -> str:
    """Returns sacreBLEU's signature with the tokenizer that ran before it."""
    if name != "moses_bleu":
        return signature
    return signature.replace("tok:none", f"tok:moses.{moses}-sacremoses.{version('sacremoses')}")


def _as_scored(
    name: str, hypotheses: Sequence[str], streams: Sequence[Sequence[str]], moses: str | None
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Returns the text as scored: tokenized for "moses_bleu"."""
    if name != "moses_bleu" or moses is None:
        return hypotheses, streams
    return moses_tokenized(hypotheses, moses), [moses_tokenized(stream, moses) for stream in streams]


def moses_tokenized(lines: Sequence[str], language: str) -> list[str]:
    """Tokenizes lines like Moses' tokenizer.perl, without XML escapes."""
    from sacremoses import MosesTokenizer  # slow to import

    short = language.lower().replace("_", "-").split("-")[0]
    if short in UNSPACED:
        raise ArgumentError(f"moses does not support {language}, which has no spaces between words; omit --moses.")
    tokenizer = MosesTokenizer(lang=short)
    return [tokenizer.tokenize(line, return_str=True, escape=False) for line in lines]


def paired_bootstrap(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    tokenized: bool = False,
    lowercase: bool = False,
    moses: str | None = None,
    resamples: int = RESAMPLES,
) -> tuple[Comparison, ...]:
    """Compares two systems by paired bootstrap over the lines. See `corpus_scores` for the arguments."""
    if resamples < 1:
        raise ArgumentError(f"resamples={resamples} must be at least 1.")
    streams = _streams(baseline, references)
    _streams(system, references)
    found = []
    for name, metric in _metrics(tokenized, lowercase, moses).items():
        # One metric at a time: sacreBLEU keys its results by name, and two of these are called BLEU.
        first_lines, scored = _as_scored(name, baseline, streams, moses)
        second_lines, _ = _as_scored(name, system, streams[:0], moses)
        systems: list[tuple[str, Sequence[str]]] = [("baseline", first_lines), ("system", second_lines)]
        test = PairedTest(systems, {name: metric}, scored, test_type="bs", n_samples=resamples)
        signatures, results = test()
        [(title, signature)] = signatures.items()
        low, high = _difference_interval(metric, first_lines, second_lines, scored, resamples)
        pair: list[Any] = results[title]
        first, second = pair
        found.append(
            Comparison(
                name=name,
                baseline=float(first.score),
                system=float(second.score),
                difference=float(second.score - first.score),
                difference_low=low,
                difference_high=high,
                # sacreBLEU calls no difference significant
                p_value=1.0 if first.score == second.score else float(second.p_value),
                baseline_mean=float(first.mean),
                baseline_ci95=float(first.ci),
                system_mean=float(second.mean),
                system_ci95=float(second.ci),
                signature=_signature(name, str(signature), moses),
            )
        )
    return tuple(found)


def _difference_interval(
    metric: Any, baseline: Sequence[str], system: Sequence[str], references: Sequence[Sequence[str]], resamples: int
) -> tuple[float, float]:
    """Returns the 95% percentile interval of the difference, both systems resampled with the same lines."""
    both = [np.array(metric._extract_corpus_statistics(lines, references), np.float64) for lines in (baseline, system)]
    rng = np.random.default_rng(SEED)
    differences = []
    for _ in range(resamples):
        chosen = rng.integers(len(baseline), size=len(baseline))
        first, second = (metric._compute_score_from_stats(statistics[chosen].sum(0)).score for statistics in both)
        differences.append(second - first)
    low, high = np.quantile(differences, [0.025, 0.975]).tolist()
    return low, high


def scoring_warnings(
    hypotheses: Sequence[str], references: Sequence[str], *, tokenized: bool = False, lowercase: bool = False
) -> list[str]:
    """Returns warnings about text that makes the scores unreliable."""
    found = []
    sides = (("the translations", hypotheses), ("the references", references))
    lower = {what for what, lines in sides if _all_lower(lines)}
    for what, lines in sides:
        count = len(lines)
        for mark, with_mark in (("▁", ["▁" in line for line in lines]), ("@@", ["@@ " in f"{line} " for line in lines])):
            if any(with_mark):
                found.append(
                    f"{what} contain '{mark}' in {sum(with_mark)} of {count} lines: these are subwords, not text; join them "
                    "before scoring."
                )
        if what in lower and not lowercase and not (tokenized and len(lower) == 2):
            found.append(
                f"{what} are all in lower case: their cased BLEU is not comparable with published scores; "
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
    """Returns whether all lines with cased letters are in lower case, and there are any."""
    letters = [line for line in lines if line.upper() != line.lower()]
    return bool(letters) and all(line == line.lower() for line in letters)


def look_tokenized(lines: Sequence[str]) -> bool:
    """Returns whether most lines that end a sentence have a space before the final punctuation."""
    ending = [line.rstrip() for line in lines if line.rstrip().endswith((".", "?", "!"))]
    return len(ending) > 0 and sum(line[-2:-1] == " " for line in ending) > len(ending) / 2


def _metrics(tokenized: bool, lowercase: bool, moses: str | None) -> dict[str, BLEU | CHRF]:
    if tokenized and moses is not None:
        raise ArgumentError("moses cannot be used with tokenized text; omit --moses, or add --no-tokenized.")
    metrics: dict[str, BLEU | CHRF] = {"bleu": BLEU(force=True), "chrf": CHRF()}  # force: see `scoring_warnings` instead
    if tokenized:
        metrics["tokenized_bleu"] = BLEU(tokenize="none", lowercase=lowercase, force=True)
    elif moses is not None:
        metrics["moses_bleu"] = BLEU(tokenize="none", lowercase=lowercase, force=True)
    elif lowercase:
        metrics["lowercase_bleu"] = BLEU(lowercase=True, force=True)
    return metrics


def _streams(hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Returns references as lists, each checked to have as many lines as there are hypotheses."""
    streams: list[Any] = [references] if not references or isinstance(references[0], str) else list(references)
    for stream in streams:
        if len(stream) != len(hypotheses):
            raise DataError(
                f"there are {len(hypotheses)} translations and {len(stream)} references; their numbers must be equal."
            )
    if not hypotheses:
        raise DataError("there are no translations to score.")
    return streams
