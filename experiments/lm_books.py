"""Table and figure of experiments/lm_books.sh.

    python experiments/lm_books.py DIRECTORY [--windows 4] [--length 512]

Writes table.md, heads.json and lm_books.png into DIRECTORY: bits per byte, perplexity by length, retrieval and last words from
the files of the runs; alphas, densities and induction of all heads as `entformer report` measures them, on the test text.
"""

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt

from entformer.cli.text_score import language_report

Row = dict[str, Any]


def heads_of(run: Path, length: int, windows: int) -> list[Row]:
    """Returns the heads of a run with their measures, computed once."""
    file = run / "heads.json"
    if not file.exists():
        settings: Row = {"checkpoint": "best", "title": None, "length": length, "texts": windows, "examples": 1}
        content = language_report({run: run.name}, data=None, split="test", progress=lambda *_: None, **settings)
        file.write_text(json.dumps(content["runs"][0]["heads"], indent=1), encoding="utf-8")
    found: list[Row] = json.loads(file.read_text(encoding="utf-8"))
    return found


def table(rows: list[list[str]], head: list[str]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)) + "\n"


def draw(models: list[Row], file: Path) -> None:
    figure, axes = plt.subplots(figsize=(6.0, 4.0), layout="constrained")
    for found in sorted(models, key=lambda own: -list(own["perplexity"].values())[-1]):  # the legend in the order of the lines
        contexts = [int(size) for size in found["perplexity"]]
        axes.plot(contexts, list(found["perplexity"].values()), marker="o", label=found["name"].removesuffix("-1"))
        axes.set_xscale("log", base=2)
        axes.set_xticks(contexts, [f"{size:,}" for size in contexts])
    axes.set(xlabel="tokens of context (trained at 256)", ylabel="perplexity, Moby-Dick")
    axes.legend(fontsize=8)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--windows", type=int, default=4, help="windows of text on which heads are measured")
    parser.add_argument("--length", type=int, default=512, help="tokens of such a window")
    options = parser.parse_args()
    runs = sorted(path.parents[1] for path in options.directory.glob("*/lengths/results.json"))
    scores, heads, lengths = [], [], []
    for run in runs:
        valid, test = (json.loads((run / f"{name}.json").read_text(encoding="utf-8")) for name in ("valid", "test"))
        (found,) = json.loads((run / "lengths" / "results.json").read_text(encoding="utf-8"))["models"]
        lengths.append(found)
        needle = [f"{100 * mean(depths.values()):.0f}" for depths in found["needle"].values()]
        last = [f"{100 * accuracy:.1f}" for accuracy, _ in found["last_words"].values()]
        scores.append(
            [run.name, f"{valid['bits_per_byte']:.4f}", f"{test['bits_per_byte']:.4f}"]
            + [f"{value:.1f}" for value in found["perplexity"].values()]
            + [" ".join(needle), " ".join(last)]
        )
        measured = heads_of(run, options.length, options.windows)
        by_layer: dict[int, list[Row]] = {}
        for row in measured:
            by_layer.setdefault(row["layer"], []).append(row)
        learned = len({row["alpha"] for row in measured}) > 1
        alphas = [" ".join(f"{row['alpha']:.2f}" for row in own) for own in by_layer.values()] if learned else []
        best = max(measured, key=lambda row: row["induction"] or 0.0)
        role = sum(any(own["role"] == "induction" for own in row["roles"]) for row in measured)
        values = [best["induction"], best["density"], mean(row["density"] for row in measured)]
        place = f"layer {best['layer'] + 1} head {best['head'] + 1}"
        heads.append([run.name, " / ".join(alphas), f"{role} of {len(measured)}", place, *(f"{value:.2f}" for value in values)])
    sizes = [str(size) for size in lengths[0]["perplexity"]]
    text = (
        "Bits per byte, perplexity of the same tokens by context, retrieval of a fact and last words in percent by context\n\n"
    )
    text += table(scores, ["model", "in domain", "Moby-Dick", *(f"ppl {size}" for size in sizes), "needle", "last words"])
    text += "\nAlphas by layer, heads with the role of induction, the head with the most induction, and densities\n\n"
    text += table(heads, ["model", "alphas", "role", "most", "induction", "its density", "all heads"])
    (options.directory / "table.md").write_text(text, encoding="utf-8")
    print(text)
    draw(lengths, options.directory / "lm_books.png")


if __name__ == "__main__":
    main()
