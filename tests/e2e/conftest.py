"""Chromium, driven by playwright, with a report in it. Without it tests are skipped; `make test` installs it where possible."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from entformer.analysis.assemble import assemble

from .page_driver import open_page
from .report_data import DATA

TIMEOUT = 90_000  # milliseconds; generous, so that slow machines pass
NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Opens the browser for one file of tests: while playwright's event loop runs, other tests cannot start one."""
    path = next((path for name in NAMES if (path := shutil.which(name))), None)
    if path is None:
        reason = "chromium is not installed; run scripts/install_browser.sh, which make test does"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    with sync_playwright() as playwright:
        # The sandbox needs privileges that containers lack; the pages are our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        expect.set_options(timeout=TIMEOUT)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(assemble(DATA), encoding="utf-8")
    return path


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    yield from open_page(browser, report)
