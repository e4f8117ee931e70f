"""The demo's first part: alpha-entmax on one row of scores, and alpha learned by gradient. Out: tables, and the figure's data.

The row is made up: how much the word "it" might look at each word of a sentence. Everything else is computed on the spot.
"""

from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from entformer.cli.demo_figure import draw_demo
from entformer.kernels.entmax.api import entmax
from entformer.text.numbers import format_alpha, format_short

KEYS = ("the", "cat", "sat", "on", "the", "mat", "because", "it", "was", "tired")
SCORES = (-0.5, 2.6, 0.6, -1.9, -0.7, 1.9, -1.3, 1.1, -0.9, 1.5)
MAPPINGS = {"softmax": 1.0, "α = 1.25": 1.25, "1.5-entmax": 1.5, "sparsemax": 2.0}
BAR = 9  # cells of the longest bar
EIGHTHS = " ▏▎▍▌▋▊▉█"
HIDDEN_ALPHA = 1.73


def show_mappings(console: Console, figure: Path) -> None:
    """Show one row of scores under four mappings, and alpha being learned; draw `figure`."""
    scores = torch.tensor(SCORES)
    weights = {name: entmax(scores, alpha) for name, alpha in MAPPINGS.items()}
    _show_weights(console, weights)
    _show_learning(console, scores)
    alphas = torch.linspace(1.0, 2.0, 201)
    curves = entmax(scores.expand(len(alphas), -1), alphas.unsqueeze(-1))  # (alphas, keys)
    columns = {name: p.tolist() for name, p in weights.items()}
    draw_demo(figure, keys=KEYS, weights=columns, marks=MAPPINGS, alphas=alphas.tolist(), curves=curves.T.tolist())
    console.print("  the same as a figure:", Text(str(figure)), soft_wrap=True)


def bar(weight: float, longest: float) -> Text:
    """A weight as a bar and a number. Exactly zero is a dot and a bare 0: a different thing from a small weight."""
    if weight == 0.0:
        return Text.assemble((f"{'·':<{BAR}}", "dim"), ("    0", "bold red"))
    eighths = max(1, round(8 * BAR * weight / longest))
    cells = EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()
    return Text.assemble((f"{cells:<{BAR}}", "cyan"), f" {format_short(weight):>4}")


def _show_weights(console: Console, weights: dict[str, Tensor]) -> None:
    console.print('\n[bold]One row of scores, four mappings[/bold]: what the word "it" looks at (made-up scores)')
    longest = max(float(p.max()) for p in weights.values())
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("key")
    table.add_column("score", justify="right", style="dim")
    for name in weights:
        table.add_column(name, no_wrap=True)
    for i, (key, score) in enumerate(zip(KEYS, SCORES, strict=True)):
        table.add_row(key, f"{score:+.1f}", *(bar(float(p[i]), longest) for p in weights.values()))
    table.add_row("support", "", *(f"{int((p > 0).sum())} of {len(KEYS)}" for p in weights.values()), style="dim")
    console.print(table, highlight=False)
    console.print("A [bold red]0[/bold red] is exact: that key costs nothing and gets no gradient.", highlight=False)


def _show_learning(console: Console, scores: Tensor) -> None:
    target = entmax(scores, HIDDEN_ALPHA)
    raw = torch.tensor(-2.2, requires_grad=True)  # alpha = 1 + sigmoid(raw), so it starts near 1.1: almost softmax
    path = []
    for _ in range(150):
        alpha = 1.0 + torch.sigmoid(raw)
        loss = (entmax(scores, alpha) - target).square().sum()
        (slope,) = torch.autograd.grad(loss, raw)
        raw.data -= 10.0 * slope
        path.append(alpha.item())
    shown = " → ".join(format_alpha(path[step]) for step in (0, 5, 20, 149))
    console.print("\n[bold]Alpha is learned by gradient[/bold], like any weight of the network")
    console.print(f"  weights made with alpha {HIDDEN_ALPHA}, found again from them: {shown}", highlight=False)
