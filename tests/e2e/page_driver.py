"""What a reader does with a report: open it, choose a head, hover a token, read weights and columns."""

from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, expect


class AttentionTrace:
    """A page, and everything it said or asked for."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("console", lambda message: self.problems.append(message.text))
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("dialog", lambda dialog: self.problems.append(dialog.message))
        page.on("request", lambda request: None if request.url.startswith("file:") else self.problems.append(request.url))


def open_page(browser: Browser, path: Path, width: int = 1280, **options: object) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options)  # type: ignore[arg-type]
    trace = AttentionTrace(context.new_page())
    trace.page.goto(path.as_uri())
    yield trace.page
    assert trace.problems == []
    context.close()


def choose_head(page: Page, key: str) -> None:
    page.click(f'#grid [data-key="{key}"]')
    expect(page.locator(".inspector code").first).to_have_text(key)


def token(page: Page, number: int) -> None:
    page.locator(".reading .queries .token").nth(number).hover()


def weights_shown(page: Page) -> dict[int, float]:
    lines = page.locator(".support li")
    columns = lines.evaluate_all("(items) => items.map((item) => Number(item.dataset.column))")
    return dict(zip(columns, map(float, page.locator(".support .value").all_text_contents()), strict=True))


def column(page: Page, number: int) -> list[float]:
    texts = page.locator(f"#head-table tbody tr td:nth-child({number})").all_text_contents()
    return [float(text.strip("%")) for text in texts]
