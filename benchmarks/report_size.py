"""Measures the size of a report with a very long sentence, and the time to open it.

    python benchmarks/report_size.py RUN... [--tokens 512] [--repeats 5] [--keep DIR]

For each run, sentences of its own test set are joined until one has `--tokens` tokens on its longer side. The report has this
sentence and 60 ordinary ones, and is opened in headless Chromium at the long sentence. A page is open when all thumbnails and
the large head are drawn; each time in a new browser context. Needs playwright and Chromium.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from entformer.analysis.assemble import assemble
from entformer.analysis.data import report_data
from entformer.checkpoint import LoadedRun, load_run
from entformer.cli.report import prepare_run
from entformer.cli.test_sets import prepared_of_run

ORDINARY = 60
OPEN = """() => document.querySelector('.inspector .figure > *') !== null
    && [...document.querySelectorAll('#grid .head:not(.absent) canvas')].every((canvas) => canvas.width !== 300)"""


def joined(sources: list[str], targets: list[str], loaded: LoadedRun, tokens: int) -> tuple[str, str]:
    """One line of many, as long as `tokens` allow; EOS counts."""
    sizes = [[len(ids) for ids in loaded.subwords.encode_lines(side)] for side in (sources, targets)]
    used, total = 0, [1, 1]
    while used < len(sources) and all(total[side] + sizes[side][used] <= tokens for side in (0, 1)):
        total = [total[side] + sizes[side][used] for side in (0, 1)]
        used += 1
    print(f"  {used} sentences joined: {total[0]} source and {total[1]} target tokens")
    return " ".join(sources[:used]), " ".join(targets[:used])


def make_page(run: Path, tokens: int, folder: Path) -> tuple[Path, int]:
    """The page, and the place of the long sentence in it."""
    loaded = load_run(run)
    sources, targets = (list(side) for side in prepared_of_run(run).text("test"))
    long = joined(sources, targets, loaded, tokens)
    for side, language, line in zip((sources, targets), (loaded.source_language, loaded.target_language), long, strict=True):
        (folder / f"text.{language}").write_text("\n".join([*side[-ORDINARY:], line]) + "\n", encoding="utf-8")
    began = time.perf_counter()
    prepared = prepare_run(run, run.name, data=str(folder / "text"))
    data = report_data([prepared], examples=12)
    page = folder / f"{run.name}.html"
    page.write_text(assemble(data), encoding="utf-8")
    sentences = data["runs"][0]["sentences"]
    place = max(range(len(sentences)), key=lambda at: len(sentences[at]["source"]))
    heads = sentences[place]["heads"]
    cuts = sorted(head["cut"] for head in heads.values() if head["cut"] is not None)
    weights = sum(len(head["col"]) for head in heads.values())
    between = f" at {cuts[0]} to {cuts[-1]}" if cuts else ""
    print(f"  collected and written in {time.perf_counter() - began:.1f} s; of the long sentence {weights:,} weights are held")
    print(f"  {len(heads)} heads, {len(cuts)} of them cut{between}; {len(sentences[place]['omitted'])} left out")
    return page, place


def seconds_to_open(browser: Browser, page: Path, place: int) -> float:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    tab = context.new_page()
    began = time.perf_counter()
    tab.goto(f"{page.as_uri()}#run=0&sentence={place}")
    tab.wait_for_function(OPEN)
    took = time.perf_counter() - began
    assert tab.locator("#sentence-choice").input_value() == str(place)
    context.close()
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="folder for the pages")
    options = parser.parse_args()
    program = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        for run in options.runs:
            print(run.name)
            page, place = make_page(run, options.tokens, folder)
            times = [seconds_to_open(browser, page, place) for _ in range(options.repeats)]
            size = page.stat().st_size / 1e6
            print(f"  {size:.2f} MB, open in {statistics.median(times):.2f} s (from {min(times):.2f} to {max(times):.2f} s)")
        browser.close()


if __name__ == "__main__":
    main()
