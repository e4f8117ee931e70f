"""Chromium, driven by playwright. The tests are skipped if it is not installed; `make test` installs it where possible."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

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
