"""`entformer report --live`: writes a page that runs a trained model in the browser."""

import json
from collections.abc import Sequence
from pathlib import Path

from entformer.checkpoint import RunFolder, load_run
from entformer.cli.output import writable_file
from entformer.cli.test_sets import sample_data
from entformer.errors import ArgumentError
from entformer.explore.live import live_page
from entformer.files import write_text


def write_live(runs: Sequence[Path], out: Path, title: str | None, checkpoint: str, *, as_json: bool) -> None:
    """Writes a page that runs the model of the one run in the browser."""
    if len(runs) != 1:
        raise ArgumentError(f"--live writes a page of one run, and {len(runs)} are given; give one run directory.")
    page, run = writable_file(out), load_run(runs[0], checkpoint)
    examples, training_text = sample_data(runs[0], run)
    name = title or runs[0].resolve().name
    write_text(page, live_page(run, name=name, examples=examples, folder=RunFolder(runs[0]), training_text=training_text))
    if as_json:
        print(json.dumps({"page": str(page), "bytes": page.stat().st_size}))
    else:
        print(f"{page}  ({page.stat().st_size / 1e6:.1f} MB; open it in a browser)")
