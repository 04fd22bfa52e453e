"""What people do on a page, by roles and labels as they find them."""

from __future__ import annotations

from urllib.parse import urljoin

from playwright.sync_api import Locator, Page


def press(page: Page | Locator, name: str) -> None:
    """Press a button."""
    page.get_by_role("button", name=name, exact=True).click()


def follow(page: Page | Locator, name: str) -> None:
    """Follow a link."""
    page.get_by_role("link", name=name, exact=True).click()


def tick(page: Page, *keys: int) -> None:
    """Tick jobs of a list."""
    for key in keys:
        page.get_by_label(f"Tick job {key}", exact=True).check()


def go(page: Page, path: str) -> None:
    """Go to a page by its address."""
    page.goto(urljoin(page.url, path))


def title(page: Page) -> Locator:
    """Find the title of a page."""
    return page.get_by_role("heading", level=1)


def row(page: Page, key: int | str) -> Locator:
    """Find the row of a table that begins with a key."""
    heading = page.get_by_role("rowheader", name=str(key), exact=True)
    return page.get_by_role("row").filter(has=heading)


def overhang(page: Page) -> dict[int, int]:
    """Return by how much the page scrolls sideways on a computer, a tablet and a phone."""
    found = {}
    for width in (1280, 768, 360):
        page.set_viewport_size({"width": width, "height": 800})
        found[width] = page.evaluate(
            "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
    return found
