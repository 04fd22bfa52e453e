"""`sa-jobqueue web`: the address that it prints opens the page, in one browser."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, expect
from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session

from tests.servers.given import REPOSITORY
from tests.web.conftest import add, failed, statuses

from .people import press, tick, title
from .watching import Watch

pytestmark = pytest.mark.only_on("postgresql")


@pytest.fixture
def printed(engine: Engine, db_url: URL) -> Iterator[str]:
    """The address that the command prints."""
    url = db_url.render_as_string(hide_password=False)
    command = (sys.executable, "-m", "sa_jobqueue", "web", "tests.web.models:emails")
    with subprocess.Popen(
        [*command, "--url", url, "--port", "0"], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()


@pytest.fixture
def watch(printed: str) -> Watch:
    """What the browser complains of."""
    return Watch(f"http://{urlsplit(printed).netloc}")


def test_who_has_the_address_comes_in_and_acts(
    browser: Browser, printed: str, session: Session, watch: Watch
) -> None:
    add(session, failed(1))
    context = browser.new_context()
    watch.follow(context)
    page = context.new_page()

    page.goto(printed)
    expect(title(page)).to_have_text("Queues")
    assert "token" not in page.url
    page.get_by_role("rowheader").get_by_role("link").click()
    tick(page, 1)
    press(page, "Retry…")
    press(page, "Retry 1 job")
    expect(title(page)).to_have_text("1 job retried")
    (cookie,) = context.cookies()
    context.close()

    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert statuses(session) == {1: "unclaimed"}
    assert watch.faults == []


def test_another_browser_without_the_token_sees_nothing(
    browser: Browser, printed: str, watch: Watch
) -> None:
    watch.expect("403")
    context = browser.new_context()
    watch.follow(context)
    page = context.new_page()

    page.goto(f"http://{urlsplit(printed).netloc}/queues/emails")
    expect(title(page)).to_have_text("Not for you")
    shown = page.content()
    context.close()

    assert "emails" not in shown.replace("/queues/emails", "")
    assert watch.faults == []
