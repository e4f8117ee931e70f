"""How well the slope that density_target differentiates predicts real densities. In: run folders. Out: a table.

    python experiments/density_surrogate.py RUN [RUN ...]

For every head that learns its alpha: the slope of the chord to alpha = 2 (`training/density_target.py`) against what counting
finds when that alpha is raised by STEP and nothing else changes. Heads are grouped by their alpha.
"""

import statistics
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

from entformer.checkpoint import load_run
from entformer.cli.test_sets import prepared_of_run
from entformer.data.batching import collate
from entformer.models.override import overridden_alphas
from entformer.training.density_target import measure

STEP = 0.1
PAIRS = 300
EDGES = (1.0, 1.1, 1.3, 1.5, 1.7, 2.01)


def main(folders: list[Path]) -> None:
    found = []  # alpha, density, chord, counted
    for folder in folders:
        run = load_run(folder, "last")
        store = prepared_of_run(folder).store("valid")
        batch = collate(store, np.arange(min(PAIRS, len(store))))
        before = measure(run.model, batch, slopes=True)
        alphas = run.model.alphas()
        for (kind, layer), chord in before.slope.items():
            own = alphas[kind][layer].tolist()
            # The heads of one layer at a time: its scores stay as they are.
            with overridden_alphas(run.model, {(kind, layer, head): alpha + STEP for head, alpha in enumerate(own)}):
                after = measure(run.model, batch).density[kind, layer]
            counted = (after - before.density[kind, layer]) / STEP
            found += zip(own, before.density[kind, layer].tolist(), chord.tolist(), counted.tolist(), strict=True)
    print("| alpha | heads | density | slope of the chord | counted slope over +0.1 |\n|---|---|---|---|---|")
    for low, high in pairwise(EDGES):
        group = [values for values in found if low <= values[0] < high]
        if group:
            means = [statistics.mean(column) for column in zip(*group, strict=True)]
            print(f"| {low:g} to {min(high, 2):g} | {len(group)} | " + " | ".join(f"{mean:.2f}" for mean in means[1:]) + " |")
    chords, counted = [values[2] for values in found], [values[3] for values in found]
    print(f"\ncorrelation of the two over {len(found)} heads: {statistics.correlation(chords, counted):.2f}")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
