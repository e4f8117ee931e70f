"""The demo's third part: what the trained models do. In: two run folders. Out: BLEU, samples, alphas, densities.

Density is the share of (query, key) pairs with a weight above zero, of those a query may attend to: in the decoder, a position
may attend to itself and to earlier ones only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from entformer.analysis.alphas import correlation_text, initial_alphas, initial_correlation
from entformer.analysis.history import metrics_of, validation_scores
from entformer.checkpoint.atomic import write_json, write_text
from entformer.cli.demo_training import DemoModel
from entformer.cli.test_sets import TestSet
from entformer.decoding.records import AttentionRecord, HeadKey
from entformer.decoding.scoring import Scores, corpus_scores
from entformer.decoding.translate import Translation, Translator
from entformer.text.numbers import format_alpha, format_number, format_percent

KINDS = {"encoder": "encoder self", "decoder": "decoder self", "cross": "decoder to source"}
WATCHED = 50  # test sentences the densities are counted over


@dataclass(frozen=True)
class Count:
    """Attention of one head, or of several, counted."""

    used: int = 0  # weights above zero
    allowed: int = 0  # keys the queries may attend to, added up
    queries: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.used + other.used, self.allowed + other.allowed, self.queries + other.queries)

    @property
    def density(self) -> float:
        return self.used / max(self.allowed, 1)


@dataclass(frozen=True)
class Evaluation:
    """What one model does on the test set."""

    model: DemoModel
    translations: list[str]
    validation: list[dict[str, Any]]  # scores on the validation set: {"name", "value", "signature", "about"}
    scores: Scores  # on the test set
    alphas: dict[HeadKey, float]
    heads: dict[HeadKey, Count]

    @property
    def named_scores(self) -> list[dict[str, Any]]:
        """The scores on the test set, named as such, in the form of a report."""
        beam = self.model.recipe.decoding.beam
        about = f"on {self.scores.lines:,} sentences of the test set, beam {beam}"
        return [
            {"name": f"test {name}", "value": score.value, "signature": score.signature, "about": about}
            for name, score in (("BLEU", self.scores["bleu"]), ("chrF", self.scores["chrf"]))
        ]

    def kind(self, kind: str) -> Count:
        return sum((count for key, count in self.heads.items() if key.kind == kind), Count())


def evaluate(model: DemoModel, test_set: TestSet, file: Path, console: Console) -> Evaluation:
    """Translate the test set with the best checkpoint; score it; watch some sentences."""
    decoding = model.recipe.decoding
    translator = Translator(
        model.folder.path,
        beam=decoding.beam,
        length_penalty=decoding.length_penalty,
        length_penalty_alpha=decoding.penalty_alpha,
        window=100,  # a longer one would be hardly faster, and progress would show later
    )
    if not console.is_terminal:
        console.print(f"  {model.title}: translating {len(test_set.sources)} test sentences", highlight=False)
    done: list[Translation] = []
    columns = (TextColumn("  {task.description}"), BarColumn(24), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"{model.title:<13} translates", total=len(test_set.sources))
        for translation in translator.translate(test_set.sources):
            done.append(translation)
            progress.advance(task)
    lines = [translation.text for translation in done]
    write_text(file, "".join(f"{line}\n" for line in lines))
    records = [record for translation in done[:WATCHED] for record in translator.attention(translation)]
    return Evaluation(
        model=model,
        translations=lines,
        validation=validation_scores(model.folder, metrics_of(model.folder.metrics), translator.run.step),
        scores=corpus_scores(lines, test_set.references, tokenized=test_set.tokenized, lowercase=test_set.lowercase),
        alphas=records[0].alphas,
        heads=count_attention(records),
    )


def count_attention(records: Sequence[AttentionRecord]) -> dict[HeadKey, Count]:
    """Every head's weights above zero, over all records."""
    counts: dict[HeadKey, Count] = {}
    for record in records:
        for key, rows in record.heads.items():
            n = rows.queries
            allowed = n * (n + 1) // 2 if key.kind == "decoder" else n * rows.keys
            used = int((rows.weight > 0).sum())  # softmax may round a weight to zero; such a key counts as unused
            counts[key] = counts.get(key, Count()) + Count(used, allowed, n)
    return counts


# ---- shown ---------------------------------------------------------------------------------------------------------------


def show_scores(console: Console, evaluated: Sequence[Evaluation], test_set: TestSet) -> None:
    beam = evaluated[0].model.recipe.decoding.beam
    console.print(f"\n[bold]How good they are[/bold]: {len(test_set.sources)} test sentences neither has seen, beam {beam}")
    # The report shows these very scores under these very names.
    names = list(dict.fromkeys(score["name"] for one in evaluated for score in (*one.named_scores, *one.validation)))
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    for column in ("  model", *names, "right to the letter"):
        table.add_column(column, justify="left" if column == "  model" else "right")
    for one in evaluated:
        exact = sum(line == reference for line, reference in zip(one.translations, test_set.references, strict=True))
        values = {score["name"]: score["value"] for score in (*one.named_scores, *one.validation)}
        cells = [Text(format_number(values.get(name), 1), "bold" if name == "test BLEU" else "") for name in names]
        table.add_row(f"  {one.model.title}", *cells, f"{exact} of {len(test_set.references)}")
    console.print(table, highlight=False)
    console.print("  The validation set also chose the weights; the test set chose nothing.", highlight=False)
    for score in evaluated[0].named_scores:
        console.print(f"  {score['name']}: {score['signature']}", style="dim", markup=False, highlight=False, soft_wrap=True)


def sample_lines(test_set: TestSet, evaluated: Sequence[Evaluation]) -> list[int]:
    """Selects a question, a clause with a final predicate, a long compound and an error, if any."""
    references = test_set.references
    numbers = range(len(references))
    longest_word = [max(len(word) for word in reference.split()) for reference in references]
    requests = (
        (at for at in numbers if references[at].endswith("?")),
        (at for at in numbers if ", weil " in references[at] or ", dass " in references[at]),
        iter(sorted(numbers, key=lambda at: -longest_word[at])),
        (at for at in numbers if evaluated[-1].translations[at] != references[at]),
    )
    chosen: list[int] = []
    for requested in requests:
        new = next((at for at in requested if at not in chosen), None)
        if new is not None:
            chosen.append(new)
    return chosen


def show_samples(console: Console, evaluated: Sequence[Evaluation], test_set: TestSet) -> None:
    console.print("\n[bold]How they translate[/bold]: some test sentences, the last one a mistake if there is any")
    for at in sample_lines(test_set, evaluated):
        reference = test_set.references[at]
        rows = [("English", Text(test_set.sources[at])), ("reference", Text(reference))]
        for one in evaluated:
            right = one.translations[at] == reference
            mark = ("✓", "green") if right else ("✗", "red")
            rows.append((one.model.title, Text.assemble(one.translations[at], "  ", mark)))
        for name, text in rows:
            console.print(Text.assemble((f"  {name:<13} ", "dim"), text), highlight=False, soft_wrap=True)
        console.print()


def show_heads(console: Console, evaluated: Sequence[Evaluation], trace: int) -> None:
    """The alphas the last model has learned, head by head, and how sparse both models are."""
    dense, learned = evaluated[0], evaluated[-1]
    console.print("[bold]What the heads have learned[/bold]: alpha of every head (1 is softmax, 2 is sparsemax),")
    console.print(f"and the share of subwords it gives any weight to, over {trace} test sentences;", highlight=False)
    console.print("in the line below, alpha before training", highlight=False)
    heads = 1 + max(key.head for key in learned.heads)
    initial = initial_alphas(metrics_of(learned.model.folder.metrics))
    grid = Table(box=None, padding=(0, 2), pad_edge=False)
    grid.add_column("  attention")
    grid.add_column("layer", justify="right")
    for head in range(heads):
        grid.add_column(f"head {head}", no_wrap=True)
    for kind, title in KINDS.items():
        for layer in range(1 + max(key.layer for key in learned.heads if key.kind == kind)):
            keys = [HeadKey(kind, layer, head) for head in range(heads)]
            cells = [
                _cell(initial.get((key.kind, key.layer, key.head)), learned.alphas[key], learned.heads[key].density)
                for key in keys
            ]
            grid.add_row(f"  {title}" if layer == 0 else "", str(layer), *cells)
    console.print(grid, highlight=False)
    final = {(key.kind, key.layer, key.head): alpha for key, alpha in learned.alphas.items()}
    if (correlation := (initial_correlation(initial, final) or {}).get("all")) is not None:
        console.print(f"  {correlation_text(correlation, learned.model.steps)}", highlight=False)

    console.print("\n[bold]How sparse they are[/bold]: subwords with weight, of those a position may look at")
    table = Table(box=None, padding=(0, 2), pad_edge=False)
    table.add_column("  attention")
    for one in (dense, learned):
        table.add_column(one.model.title, justify="right", no_wrap=True)
    for kind, title in KINDS.items():
        table.add_row(f"  {title}", *(_share(one.kind(kind)) for one in (dense, learned)))
    console.print(table, highlight=False)
    console.print("  All other weights of the learned-alpha model are exactly 0.", highlight=False)


def _cell(initial: float | None, alpha: float, density: float) -> Text:
    start = "" if initial is None else f"\n{format_alpha(initial)}"
    return Text.assemble((format_alpha(alpha), "cyan"), (f" {format_percent(density):>4}", "dim"), (start, "dim"))


def _share(count: Count) -> str:
    queries = max(count.queries, 1)
    return f"{format_percent(count.density)} ({count.used / queries:.1f} of {count.allowed / queries:.1f})"


def write_summary(path: Path, evaluated: Sequence[Evaluation], test_set: TestSet) -> None:
    """The numbers of the demo for programs."""
    models: dict[str, Any] = {}
    for one in evaluated:
        models[one.model.name] = {
            "run": str(one.model.folder.path),
            "steps": one.model.steps,
            **one.scores.as_dict(),
            "validation": {score["name"].removeprefix("validation "): score["value"] for score in one.validation},
            "density": {kind: one.kind(kind).density for kind in KINDS},
            "heads": [
                {**key._asdict(), "alpha": one.alphas.get(key), "density": count.density} for key, count in one.heads.items()
            ],
        }
    write_json(path, {"test_set": test_set.shown, "sentences": len(test_set.sources), "models": models})
