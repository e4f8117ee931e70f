"""Actions on a report page: open it, choose a head, hover a token, read weights and columns."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from entformer.analysis.assemble import assemble


def open_page(browser: Browser, path: Path, width: int = 1280, **options: Any) -> Iterator[Page]:
    """Yields the page of a file; it must log nothing and request nothing but files."""
    yield from open_address(browser, path.as_uri(), "file:", width, offline=True, **options)


def open_address(browser: Browser, address: str, own: str, width: int = 1280, **options: Any) -> Iterator[Page]:
    """Yields the page at an address; it must log nothing and request nothing but addresses that begin with `own`."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    context.set_default_timeout(90_000)
    page, errors = context.new_page(), list[str]()
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    page.on("request", lambda request: None if request.url.startswith((own, "data:")) else errors.append(request.url))
    page.goto(address)
    yield page
    assert errors == []
    context.close()


def open_report(browser: Browser, directory: Path, data: dict[str, Any], **options: Any) -> Iterator[Page]:
    """Yields the page of this data."""
    path = directory / "report.html"
    path.write_text(assemble(data), encoding="utf-8")
    yield from open_page(browser, path, **options)


INKED = """(canvas) => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const zero = Colors.zeroRgb().join();
  const pixels = Array.from({ length: data.length / 4 }, (_, at) => data.slice(4 * at, 4 * at + 4));
  return pixels.filter((pixel) => pixel[3] && pixel.slice(0, 3).join() !== zero).length;
}"""
"""Counts the pixels of a thumbnail that are neither masked, which is empty, nor zero, which has a color of its own."""


def choose_head(page: Page, key: str) -> None:
    page.click(f'#grid [data-key="{key}"]')
    expect(page.locator(".inspector code").first).to_have_text(key)


def token(page: Page, number: int) -> None:
    page.locator(".reading .queries .token").nth(number).hover()


def weights_shown(page: Page) -> dict[int, float]:
    lines = page.locator("#one-head .support li")
    columns = lines.evaluate_all("(items) => items.map((item) => Number(item.dataset.column))")
    return dict(zip(columns, map(float, lines.locator(".value").all_text_contents()), strict=True))


def column(page: Page, number: int) -> list[float]:
    texts = page.locator(f"#head-table tbody tr td:nth-child({number})").all_text_contents()
    return [float(text.strip("%")) for text in texts]


def nameless_controls(page: Page) -> int:
    """Counts controls that a screen reader cannot name."""
    found: int = page.evaluate(
        """[...document.querySelectorAll('button, input, select, textarea')].filter((node) =>
        !(node.getAttribute('aria-label') || node.textContent.trim() || (node.labels && node.labels.length))).length"""
    )
    return found
