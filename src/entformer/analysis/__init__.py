"""What the heads of a model do: collect, measures, tables, figures, the report. In: a model and text. Out: `HeadTable`, pages.

    import entformer as ef
    table = ef.analysis.collect(model, batches)               # one pass over the data, fixed memory
    table.sorted("density"), table.column("alpha"), table.to_json()

The data's way: rows.py (weights of a layer, sparse) -> density.py, diversity.py, positions.py, merging.py, interrogation.py
(the measures) -> totals.py, collect.py (sums over the data) -> table.py, roles.py -> data.py (what a report holds) ->
figures*.py, assemble.py, report.py (files). alphas.py compares learned alphas with where they started. alignment.py goes its
own way with gold links. lengths.py and
lengths_report.py report on long-context sweeps.
"""

from entformer.analysis.alignment import AlignmentScores, alignment_error_rate, collect_alignment, link_counts
from entformer.analysis.collect import Collector, collect
from entformer.analysis.gold import Gold, read_gold
from entformer.analysis.rows import LayerRows
from entformer.analysis.table import HeadRow, HeadTable, LayerRow, Role

__all__ = [
    "AlignmentScores",
    "Collector",
    "Gold",
    "HeadRow",
    "HeadTable",
    "LayerRow",
    "LayerRows",
    "Role",
    "alignment_error_rate",
    "collect",
    "collect_alignment",
    "link_counts",
    "read_gold",
]
