"""The documentation site on a phone: no page is wider than the screen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.docs.building import built_site

pytestmark = pytest.mark.timeout(600)

#: Tells what makes a page wider than the screen: Furo scrolls the whole of its content then.
TOO_WIDE = """() => {
  const content = document.querySelector(".content"), width = content.clientWidth;
  return content.scrollWidth <= width ? "" : [
    ...content.querySelectorAll("article *")
  ].filter(element => element.getBoundingClientRect().right > width)
   .map(element => element.outerHTML.slice(0, 80)).slice(0, 3).join(" ");
}"""


@pytest.fixture(scope="module")
def phone(browser: Browser) -> Iterator[Page]:
    """A page of the width of a phone."""
    context = browser.new_context(viewport={"width": 360, "height": 800}, color_scheme="dark")
    yield context.new_page()
    context.close()


def test_no_page_of_the_site_is_wider_than_a_phone(phone: Page) -> None:
    site = built_site()
    pages = sorted(site.rglob("*.html"))

    wide = {page.relative_to(site): width_of(phone, page) for page in pages}

    assert len(pages) > 50
    assert {page: found for page, found in wide.items() if found} == {}


def width_of(phone: Page, page: Path) -> str:
    """Return what makes a page too wide, or an empty text."""
    phone.goto(page.as_uri())
    return str(phone.evaluate(TOO_WIDE))
