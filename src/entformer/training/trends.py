"""The course of alphas and densities during training as sparklines, for progress on a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from entformer.text.numbers import format_alpha, format_percent

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 8  # characters; three attention types fit beside a progress bar
NAMES = {"encoder": "enc", "decoder": "dec", "cross": "cross"}


def sparkline(values: Sequence[float], low: float, high: float, width: int = WIDTH) -> str:
    """Returns at most `width` blocks, evenly spaced over all values up to the last; `low` is the lowest block, `high` full."""
    count = min(len(values), width)
    chosen = [values[(len(values) - 1) * i // max(count - 1, 1)] for i in range(count)]
    levels = [min(max((value - low) / (high - low), 0.0), 1.0) for value in chosen]
    return "".join(BLOCKS[min(int(level * len(BLOCKS)), len(BLOCKS) - 1)] for level in levels)


def describe_trends(entries: Iterable[Mapping[str, Any]]) -> str:
    """Returns the mean alpha of each attention type and the mean density over the lines of a metrics.jsonl; "" without any.

    Two lines, "α enc ▃▄▆▇ 1.85  dec ▆▅▄▄ 1.52  cross ▂▂▁▁ 1.25" and "density ▇▅▄▃ 39%"; alphas from 1 to 2, densities from 0
    to 1.
    """
    alphas: dict[str, list[float]] = {}
    densities: list[float] = []
    for entry in entries:
        heads = {name: [head for layer in entry[name] for head in layer] for name in NAMES if name in entry}
        if entry["kind"] == "alphas":
            for name, own in heads.items():
                alphas.setdefault(name, []).append(sum(own) / len(own))
        elif entry["kind"] == "densities":
            every = [density for own in heads.values() for density in own]
            densities.append(sum(every) / len(every))
    if not alphas:
        return ""
    own_lines = (f"{NAMES[name]} {sparkline(own, 1.0, 2.0)} {format_alpha(own[-1])}" for name, own in alphas.items())
    lines = [f"α {'  '.join(own_lines)}"]
    if densities:
        lines.append(f"density {sparkline(densities, 0.0, 1.0)} {format_percent(densities[-1])}")
    return "\n".join(lines)
