"""Draws all figures of a report as PNG, SVG and PDF files.

The figures follow those of Correia et al. (2019), numbered in the table below; a figure without data (no learned alpha, no
question) is skipped. `draw_figures` needs the data alone, so report.json is enough to draw them again.
"""

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from entformer.analysis import figures_heads, figures_statistics
from entformer.analysis.style import RC_PARAMS
from entformer.files import write_bytes
from entformer.text.numbers import plain_label

FORMATS = ("png", "svg", "pdf")
FIGURES: dict[str, Callable[[dict[str, Any]], Figure | None]] = {
    "alpha-trajectories": figures_statistics.alpha_trajectories,  # Fig. 2
    "alpha-distribution": figures_statistics.alpha_distribution,  # Fig. 3
    "alpha-from-start": figures_statistics.alpha_from_start,
    "alpha-heads": figures_statistics.alpha_heads,
    "density-distribution": figures_statistics.density_distribution,  # Fig. 4
    "density-by-layer": figures_statistics.density_by_layer,  # Fig. 5
    "head-diversity": figures_statistics.head_diversity,  # Fig. 6
    "positional-heads": figures_heads.positional_heads,  # Fig. 7
    "merging-heads": figures_heads.merging_heads,  # Fig. 8
    "interrogation-heads": figures_heads.interrogation_heads,  # Fig. 9
    "varied-sparsity": figures_heads.varied_sparsity,  # Fig. 10
    "null-rate": figures_statistics.null_rate,
    "alignment-error": figures_statistics.alignment_error,
    "head-measures": figures_statistics.head_measures,
}


def draw_figures(data: dict[str, Any], directory: Path, formats: Sequence[str] | None = None) -> list[Path]:
    """Writes every figure that has data in each of `formats` (`FORMATS` by default) and returns the files.

    Names of runs are shown literally.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    data = {**data, "runs": [{**run, "name": plain_label(run["name"])} for run in data["runs"]]}
    with rc_context(RC_PARAMS):
        for name, draw in FIGURES.items():
            figure = draw(data)
            if figure is None:
                continue
            for form in formats or FORMATS:
                content = BytesIO()
                figure.savefig(content, format=form, dpi=200, metadata=_NO_DATE.get(form))
                figure.set_layout_engine("none")  # the layout is done; computing it again takes as long as drawing
                written.append(directory / f"{name}.{form}")
                write_bytes(written[-1], content.getvalue())
    return written


_NO_DATE: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # equal data, equal file
