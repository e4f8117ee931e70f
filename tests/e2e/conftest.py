"""A browser for the pages: chromium as installed on the machine, driven by playwright. Without it the tests are skipped."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

TIMEOUT_MS = 90_000  # test machines are busy
NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Closed after the tests of this directory: playwright's event loop keeps other tests from starting one."""
    path = next((path for name in NAMES if (path := shutil.which(name))), None)
    if path is None:
        missing = "no chromium was found; install it (Debian: apt-get install chromium) to test the pages"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    with sync_playwright() as playwright:
        # Its sandbox needs rights that containers do not grant; the pages are our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        expect.set_options(timeout=TIMEOUT_MS)
        yield browser
        browser.close()
