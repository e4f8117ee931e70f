"""`entformer demo`: alpha-entmax on one row of scores, alpha learned by gradient, the kernels timed; terminal and figure.

The row is made up: how much the word "it" might look at each word of a sentence. Everything else is computed on the spot.
"""

from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

from entformer.bench.signature import signature
from entformer.bench.timing import compare, take_turns
from entformer.cli.demo_figure import draw_demo
from entformer.cli.output import writable_folder
from entformer.kernels.impl import resolve
from entformer.kernels.rows.api import entmax

KEYS = ("the", "cat", "sat", "on", "the", "mat", "because", "it", "was", "tired")
SCORES = (-0.5, 2.6, 0.6, -1.9, -0.7, 1.9, -1.3, 1.1, -0.9, 1.5)
MAPPINGS = {"softmax": 1.0, "α = 1.25": 1.25, "1.5-entmax": 1.5, "sparsemax": 2.0}
BAR = 9  # cells of the longest bar
EIGHTHS = " ▏▎▍▌▋▊▉█"
HIDDEN_ALPHA = 1.73


def run(out: Path) -> None:
    """Show everything and write `out`/demo.png."""
    writable_folder(out)
    console = Console()
    scores = torch.tensor(SCORES)
    weights = {name: entmax(scores, alpha) for name, alpha in MAPPINGS.items()}
    _show_weights(console, weights)
    _show_support(console)
    _show_learning(console, scores)
    _show_speed(console)

    path = out / "demo.png"
    alphas = torch.linspace(1.0, 2.0, 201)
    curves = entmax(scores.expand(len(alphas), -1), alphas.unsqueeze(-1))  # (alphas, keys)
    columns = {name: p.tolist() for name, p in weights.items()}
    draw_demo(path, keys=KEYS, weights=columns, marks=MAPPINGS, alphas=alphas.tolist(), curves=curves.T.tolist())
    console.print("\n[bold]Figure[/bold]", Text(str(path)), soft_wrap=True)


def bar(weight: float, longest: float) -> Text:
    """A weight as a bar and a number. Exactly zero is a dot and a bare 0: a different thing from a small weight."""
    if weight == 0.0:
        return Text.assemble((f"{'·':<{BAR}}", "dim"), ("    0", "bold red"))
    eighths = max(1, round(8 * BAR * weight / longest))
    cells = EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()
    number = f"{weight:.2f}" if weight >= 0.005 else "<.01"
    return Text.assemble((f"{cells:<{BAR}}", "cyan"), f" {number}")


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


def _show_support(console: Console) -> None:
    n, rows = 1000, 64
    scores = torch.randn(rows, n, generator=torch.Generator().manual_seed(0))
    console.print(f"\n[bold]The support shrinks as alpha grows[/bold]: keys with weight, of {n} random ones")
    for alpha in (1.0, 1.1, 1.15, 1.2, 1.25, 1.3, 1.5, 2.0, 3.0):
        kept = float((entmax(scores, alpha) > 0).sum(-1).float().mean())
        console.print(Text.assemble(f"  α = {alpha:<5g}", ("█" * max(1, round(40 * kept / n)), "cyan"), f" {kept:.1f}"))


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
    shown = " → ".join(f"{path[step]:.2f}" for step in (0, 5, 20, 149))
    console.print("\n[bold]Alpha is learned by gradient[/bold], like any weight of the network")
    console.print(f"  weights made with alpha {HIDDEN_ALPHA}, found again from them: {shown}", highlight=False)


def _show_speed(console: Console) -> None:
    # The reference is some hundred times slower than the kernels: where it serves, less work shows the same.
    fast = resolve("auto", "cpu") == "cpu"
    heads, rows, n = 8, 256 if fast else 4, 512
    scores = torch.randn(heads, rows, n, generator=torch.Generator().manual_seed(0)).requires_grad_()
    grad = torch.randn(scores.shape, generator=torch.Generator().manual_seed(1))
    alphas = torch.linspace(1.2, 1.8, heads).requires_grad_()
    racers = {
        "torch.softmax": lambda: torch.autograd.grad(torch.softmax(scores, -1), scores, grad),
        "1.5-entmax": lambda: torch.autograd.grad(entmax(scores, 1.5), scores, grad),
        "sparsemax": lambda: torch.autograd.grad(entmax(scores, 2.0), scores, grad),
        "learned alpha, one per head": lambda: torch.autograd.grad(entmax(scores, alphas, alpha_dim=0), (scores, alphas), grad),
    }
    laps = take_turns(racers, rounds=15 if fast else 3)
    console.print(f"\n[bold]On this machine[/bold]: forward + backward, {heads} x {rows} rows of {n}, time against softmax")
    for name in racers:
        timing = compare(laps[name], laps["torch.softmax"])
        line = Text.assemble(f"  {name:<28}", (f"{timing.ratio:5.2f} x", "bold"), (f"{timing.seconds * 1e3:8.2f} ms", "dim"))
        console.print(line)
    console.print(Text(f"  {signature()}", "dim"))
