"""Debian's chromium, driven by playwright. Installed with apt-get if it is missing and that is possible."""

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

PATIENCE = 90_000  # milliseconds: machines that test are busy
NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def install_chromium() -> str | None:
    """Why it could not be installed; None if it was. Two workers may try at once: apt-get waits for the other one."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return "chromium is not installed, and only root with apt-get can install it"
    wait = ("-o", "DPkg::Lock::Timeout=300")
    for command in (("apt-get", *wait, "update"), ("apt-get", *wait, "install", "-y", "--no-install-recommends", "chromium")):
        result = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        )
        if result.returncode != 0 and command[-1] == "chromium":
            return f"apt-get could not install chromium: {result.stderr.strip()[-300:]}"
    return None


@pytest.fixture(scope="session")
def chromium_path() -> str:
    path = find_chromium()
    why_not = None if path else install_chromium()
    path = path or find_chromium()
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(f"the page cannot be tested: {why_not}")
        pytest.skip(str(why_not))
    return path


@pytest.fixture(scope="module")
def browser(chromium_path: str) -> Iterator[Browser]:
    """Closed after each file: while playwright is open its event loop runs, and other tests could not start one."""
    with sync_playwright() as playwright:
        # Its sandbox needs rights that containers do not give; the pages are our own.
        browser = playwright.chromium.launch(executable_path=chromium_path, args=["--no-sandbox", "--disable-dev-shm-usage"])
        expect.set_options(timeout=PATIENCE)
        yield browser
        browser.close()
