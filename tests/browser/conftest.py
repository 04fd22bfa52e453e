"""A browser, the page in a process of its own, and people who open it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright
from sqlalchemy import URL, Engine

from tests.servers.chromium import chromium, make_playwright_run
from tests.servers.errors import NotHere

# Fixtures: pytest finds them by their names here.
from tests.web.conftest import engine, page_engine, session

from .served import HEADER, served
from .watching import Watch

__all__ = ["engine", "page_engine", "session"]

Open = Callable[..., Page]

#: Milliseconds that a person waits for something to appear.
PATIENCE = 30_000

SIZE: ViewportSize = {"width": 1280, "height": 800}


# Until the last test of this folder, since Playwright's event loop is in the way of others.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Debian's browser, without a window."""
    try:
        program = chromium()
        make_playwright_run()
    except NotHere as missing:
        pytest.fail(f"no browser: {missing}")
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        # Root has no sandbox, and a container's /dev/shm may be small.
        options = ["--no-sandbox", "--disable-dev-shm-usage"]
        browser = playwright.chromium.launch(executable_path=program, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def page_address(page_engine: Engine, db_url: URL) -> Iterator[str]:
    """The address of a process that serves the page of the test's database."""
    with served(db_url) as address:
        yield address


@pytest.fixture
def address(page_address: str, engine: Engine) -> str:
    """The address of the page, whose tables are empty."""
    return page_address


@pytest.fixture
def watch(address: str) -> Watch:
    """What the browser complains of."""
    return Watch(address)


@pytest.fixture
def visit(browser: Browser, address: str, watch: Watch) -> Iterator[Open]:
    """Open a page as somebody, in a browser context of their own; nothing may go wrong on it."""
    contexts = []

    def visit(
        path: str = "/", visitor: str = "ann", *, clock: bool = False, **options: Any
    ) -> Page:
        context = browser.new_context(
            extra_http_headers={HEADER: visitor}, viewport=SIZE, **options
        )
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        watch.follow(context)
        page = context.new_page()
        if clock:  # the test moves the page's time
            page.clock.install()
        page.goto(f"{address}{path}")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert watch.faults == []


@pytest.fixture
def page(visit: Open) -> Page:
    """The page of all queues, as an admin sees it."""
    return visit()
