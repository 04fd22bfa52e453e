"""The database or the server goes away and comes back: the last page stays, and it recovers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import URL, Engine
from sqlalchemy.orm import Session

from tests.proxy import Proxy
from tests.web.conftest import add
from tests.web.models import Email

from .conftest import Open
from .served import free_port, served
from .watching import Watch

pytestmark = pytest.mark.only_on("postgresql")

BANNER = "The database or the server does not answer."


class Network(Proxy):
    """A way to a server that can be closed, and opened again."""

    def __init__(self, url: URL) -> None:
        self._closed = False
        super().__init__(url)

    def close_way(self) -> None:
        """End all connections, and every new one."""
        self._closed = True
        for opened in self._sockets[1:]:
            with suppress(OSError):  # it has ended already
                opened.shutdown(socket.SHUT_RDWR)

    def open_way(self) -> None:
        """Let connections through again."""
        self._closed = False

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        if self._closed:
            for end in (source, sink):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            return
        super()._forward(source, sink)


@pytest.fixture
def network(db_url: URL) -> Iterator[Network]:
    """The way from the page to its database."""
    with Network(db_url) as network:
        yield network


@pytest.fixture
def address(engine: Engine, network: Network) -> Iterator[str]:
    """The address of a page that goes through the network."""
    with served(network.url) as address:
        yield address


@pytest.fixture
def away(watch: Watch) -> None:
    """What the browser says of requests that fail meanwhile is expected."""
    watch.expect("503", "net::ERR_CONNECTION_REFUSED", "net::ERR_CONNECTION_RESET", "ERR_EMPTY")


def due(page: Page) -> str:
    """Return how many emails are due by the page."""
    return page.get_by_role("row").nth(1).get_by_role("cell").first.inner_text()


@pytest.mark.usefixtures("away")
def test_the_last_figures_stay_while_the_database_is_away(
    visit: Open, session: Session, network: Network
) -> None:
    add(session, Email(id=1), Email(id=2))
    page = visit()
    banner = page.get_by_text(BANNER)
    expect(banner).to_be_hidden()

    network.close_way()
    expect(banner).to_be_visible()
    kept = due(page), page.title()
    add(session, Email(id=3))
    network.open_way()

    expect(banner).to_be_hidden()
    expect(page.get_by_role("cell").first).to_have_text("3")
    assert kept == ("2", "Queues · sa_jobqueue")


@pytest.mark.usefixtures("away")
def test_the_last_page_stays_while_the_server_starts_anew(
    visit: Open, session: Session, db_url: URL, watch: Watch
) -> None:
    add(session, Email(id=1))
    port = free_port()
    watch.expect(f"request to another host: http://127.0.0.1:{port}/")
    page = visit()
    with ExitStack() as first:
        page.goto(first.enter_context(served(db_url, port)) + "/")
    banner = page.get_by_text(BANNER)

    expect(banner).to_be_visible()
    kept = due(page)
    with served(db_url, urlsplit(page.url).port):
        expect(banner).to_be_hidden()
        page.goto("about:blank")

    assert kept == "1"
