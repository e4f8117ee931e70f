"""First part of `entformer demo`: alpha-entmax on one row of scores, and alpha learned by gradient descent."""

from pathlib import Path

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from entformer.kernels.entmax.api import entmax
from entformer.text.numbers import format_alpha, format_short

KEYS = ("the", "cat", "sat", "on", "the", "mat", "because", "it", "was", "tired")
SCORES = (-0.5, 2.6, 0.6, -1.9, -0.7, 1.9, -1.3, 1.1, -0.9, 1.5)  # made up: how much "it" might attend to each word
NORMALIZERS = {"softmax": 1.0, "α = 1.25": 1.25, "1.5-entmax": 1.5, "sparsemax": 2.0}
HIDDEN_ALPHA = 1.73
COLORS = ("#0072b2", "#d55e00", "#009e73", "#8e44ad", "#b8860b")  # of the highest weights; distinct for color-blind readers
GRAY = "#9a9a9a"


def show_row(console: Console, figure: Path) -> None:
    """Shows one row of scores under four normalizers, and alpha learned by gradient descent; draws `figure`."""
    scores = torch.tensor(SCORES)
    weights = {name: entmax(scores, alpha) for name, alpha in NORMALIZERS.items()}
    longest = max(float(p.max()) for p in weights.values())
    console.print('\n[bold]One row of scores, four normalizers[/bold]: attention weights of the word "it" (made-up scores)')
    table = Table("key", "score", *weights, box=None, padding=(0, 1), pad_edge=False)
    for i, (key, score) in enumerate(zip(KEYS, SCORES, strict=True)):
        table.add_row(key, f"{score:+.1f}", *(_bar(float(p[i]), longest) for p in weights.values()))
    table.add_row("support", "", *(f"{int((p > 0).sum())} of {len(KEYS)}" for p in weights.values()), style="dim")
    console.print(table)
    console.print("A [bold red]0[/bold red] is exact: that key gets no weight and no gradient.")

    target = entmax(scores, HIDDEN_ALPHA)
    raw = torch.tensor(-2.2, requires_grad=True)  # alpha = 1 + sigmoid(raw) starts near 1.1: almost softmax
    path = []
    for _ in range(150):
        alpha = 1.0 + torch.sigmoid(raw)
        (grad,) = torch.autograd.grad((entmax(scores, alpha) - target).square().sum(), raw)
        raw.data -= 10.0 * grad
        path.append(alpha.item())
    found = " → ".join(format_alpha(path[step]) for step in (0, 5, 20, 149))
    console.print("\n[bold]Alpha is learned by gradient descent[/bold], like any parameter")
    console.print(f"  recovering alpha = {HIDDEN_ALPHA} from its weights: {found}")
    _draw_row(figure, weights)
    console.print("  the same as a figure:", Text(str(figure)), soft_wrap=True)


def _bar(weight: float, longest: float) -> Text:
    """Returns a bar and a number; an exact zero is a dot and a bare 0, unlike a small weight."""
    if weight == 0.0:
        return Text.assemble((f"{'·':<9}", "dim"), ("    0", "bold red"))
    eighths = max(1, round(72 * weight / longest))
    cells = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return Text.assemble((f"{cells:<9}", "cyan"), f" {format_short(weight):>4}")


def _draw_row(path: Path, weights: dict[str, Tensor]) -> None:
    """Draws the weights under each normalizer, and the weight of each key as a function of alpha."""
    alphas = torch.linspace(1.0, 2.0, 201)
    curves = entmax(torch.tensor(SCORES).expand(len(alphas), -1), alphas.unsqueeze(-1)).T  # (keys, alphas)
    rank = curves[:, 0].argsort(descending=True).argsort().tolist()
    colors = [COLORS[r] if r < len(COLORS) else GRAY for r in rank]
    figure = Figure(figsize=(13.0, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subfigures(1, 2, squeeze=False, width_ratios=(1.35, 1.0))[0]
    left.suptitle("the same scores, four normalizers")
    for panel, (name, p) in zip(left.subplots(1, len(weights), sharex=True, sharey=True), weights.items(), strict=True):
        bars = panel.barh(range(len(KEYS)), p.tolist(), color=colors)
        panel.bar_label(bars, ["0" if w == 0.0 else f"{w:.2g}" for w in p.tolist()], padding=3, fontsize=9)
        panel.set_title(f"{name}\n{int((p > 0).sum())} of {len(KEYS)} keys", fontsize=10.5)
        panel.set_xlim(0.0, 1.3 * max(float(q.max()) for q in weights.values()))
        panel.set_xticks([])
        panel.set_yticks(range(len(KEYS)), KEYS)
        panel.spines[["top", "right", "bottom"]].set_visible(False)
    left.axes[0].invert_yaxis()
    right.suptitle("weight of each key as alpha grows")
    panel = right.subplots()
    for key, curve, color in zip(KEYS, curves, colors, strict=True):
        support = int((curve > 0).sum())
        panel.plot(alphas[:support], curve[:support], color=color, linewidth=1.2 if color == GRAY else 2.2, label=key)
        if support < len(alphas):  # where the weight becomes exactly zero
            panel.plot(alphas[support], 0.0, "o", markerfacecolor="white", markeredgecolor=color, clip_on=False)
        if color != GRAY:
            panel.text(0.985, float(curve[0]), key, color=color, ha="right", va="center")
    for name, alpha in NORMALIZERS.items():
        panel.axvline(alpha, color="#cccccc", linewidth=0.8, zorder=0)
        panel.text(alpha, 1.02, name, ha="center", va="bottom", fontsize=8.5, transform=panel.get_xaxis_transform())
    panel.set(xlim=(1.0, 2.0), ylim=(0.0, None), xlabel="alpha   (○ weight becomes exactly 0)")
    panel.yaxis.tick_right()
    panel.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, dpi=150)
