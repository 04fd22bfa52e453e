"""The tutorials, followed in an empty folder as a reader follows them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener

import pytest

from .followed import Reader, free_ports, need_curl, reader
from .markdown import page

TUTORIALS = {"fastapi": "docs/tutorial-fastapi.md", "flask": "docs/tutorial-flask.md"}

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize("framework", TUTORIALS)
def test_a_tutorial_leads_where_it_says(framework: str, tmp_path: Path) -> None:
    pytest.importorskip(framework)

    follow_tutorial(page(TUTORIALS[framework]), tmp_path)

    assert sorted(path.name for path in (tmp_path / "mailbox").iterdir()) == [
        "ann@example.com",
        "bo@example.com",
    ]


def follow_tutorial(
    tutorial: str, folder: Path, *, replaced: Mapping[str, str] | None = None, **options: Any
) -> None:
    """Follow a tutorial, and retry a job on its web page when the page says so."""
    need_curl()
    typing, clicking = tutorial.split("Open this address in a browser")
    replaced = {**free_ports("8000", "8001"), **(replaced or {})}
    with reader(folder, replaced=replaced, **options) as following:
        following.follow(typing)
        retry_on_the_page(following)
        following.follow(clicking)


def retry_on_the_page(following: Reader) -> None:
    """Open the address that was printed, go to the failed job, tick it and retry it."""
    address = following.terminals[-1].printed.split()[0]
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    overview = get(browser, address)
    link = re.search(r'href="([^"]*)">jobs:outbox<', overview)
    assert link is not None, overview
    queue = address.partition("/?")[0] + link[1]

    failed = get(browser, queue)
    assert "FileNotFoundError" in failed
    (key,) = re.findall(r'name="key" value="(\d+)"', failed)
    assert "Retry…" in failed
    chosen = {"verb": "retry", "show": "failed", "key": key}
    assert "Nothing has been changed yet" in get(browser, queue, chosen)
    get(browser, queue, {**chosen, "confirm": "yes"})


def get(browser: OpenerDirector, address: str, form: dict[str, str] | None = None) -> str:
    """Ask for a page, or send a form as a browser does."""
    data = None if form is None else urlencode(form).encode()
    request = Request(address, data, {"Sec-Fetch-Site": "same-origin"})
    with browser.open(request, timeout=30) as answer:
        return str(answer.read().decode())
