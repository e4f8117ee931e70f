"""What the heads of a model do: measures, tables, figures, the HTML report.

    import entformer as ef
    table = ef.analysis.collect(model, batches)               # one pass over the data, fixed memory
    table.sorted("density"), table.column("alpha"), table.to_json()

Data flow: rows.py (sparse weights of a layer) -> density.py, diversity.py, positional.py, merging.py, interrogation.py
(equations) -> measures.py (one record per measure) -> totals.py, collector.py (statistics over the data) -> table.py, roles.py
-> data.py (the data of a report) -> figures*.py, assemble.py, html_report.py (files). collect.py and traces.py run models of
translation and of text. alphas.py compares learned alphas with their initial values, alignment.py compares cross attention with
gold links, lengths.py reports on long-context sweeps.
"""

from entformer.analysis.alignment import AlignmentScores, alignment_error_rate, collect_alignment, link_counts
from entformer.analysis.collect import collect
from entformer.analysis.collector import Collector
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
