"""PostgreSQL's listening connection is cut, falls silent, or leads through a pooler."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import psycopg2
import pytest
from sqlalchemy import URL, create_engine

# Inner: the 15 s of docs/internals/wake-ups.md are too long for a test.
from sa_jobqueue.wakeups import source
from tests.contract.wakeups.support import (
    SOON,
    Parcel,
    add_later,
    elsewhere,
    empty,
    idle,
    until_handled,
)
from tests.contract.worker.driver import Workers
from tests.proxy import Proxy
from tests.support import cut_connections, make_engine, until

pytestmark = pytest.mark.only_on("postgresql")


@pytest.fixture
def apart(fresh_database: URL) -> Iterator[Workers]:
    """Workers on a database whose connections may be cut."""
    workers = Workers("threads", empty(make_engine(fresh_database)))
    yield workers
    workers.plain.dispose()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the watcher has logged, in one word each."""
    words = {"do not wake this worker": "away", "wake this worker again": "back"}
    messages = [r.getMessage() for r in caplog.records if r.name == "sa_jobqueue.wakeups"]
    return [word for message in messages for part, word in words.items() if part in message]


def test_a_cut_connection_is_replaced_and_that_is_logged_once_each_time(
    apart: Workers, caplog: pytest.LogCaptureFixture
) -> None:
    with idle(apart, Parcel), elsewhere(apart.plain.url, Parcel) as add:
        for names in ("a", "ab"):
            cut_connections(apart.plain.url, "postgresql")
            until(lambda: told(caplog)[-1:] == ["away"], SOON)
            until(lambda: told(caplog)[-1:] == ["back"], SOON)
            add(names[-1])
            until_handled(apart, *names)

    assert told(caplog) == ["away", "back"] * 2


def test_a_connection_that_is_half_open_is_noticed(
    apart: Workers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = timedelta(seconds=1)
    limits = replace(source.LIMITS, answer=second, pulse=second)
    monkeypatch.setattr(source, "LIMITS", limits)
    url = apart.plain.url
    with Proxy(url) as proxy:
        first = iter([proxy.url])  # of the watcher; it connects again by the direct way

        def connect() -> object:
            watches = threading.current_thread().name == "sa_jobqueue watcher"
            return connected(next(first, url) if watches else url)

        apart.engine = create_engine(url, creator=connect)
        with idle(apart, Parcel, owner="w"), elsewhere(url, Parcel) as add:
            until(lambda: next(first, None) is None)
            proxy.go_silent()
            until(lambda: told(caplog) == ["away", "back"], SOON)
            add("a")
            until_handled(apart, "a")
        apart.engine.dispose()


def connected(url: URL) -> object:
    plain = url.set(drivername="postgresql")
    return psycopg2.connect(plain.render_as_string(hide_password=False))


def test_nobody_listens_through_a_pooler(
    apart: Workers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Inner: no pooler stands between this test and its server.
    monkeypatch.setattr(
        "sa_jobqueue.databases.postgresql.PostgreSQL.through_pooler", lambda *_: True
    )
    with idle(apart, Parcel, owner="w"):
        until(lambda: told(caplog) == ["away"], SOON)
        add_later(apart.plain, Parcel, "a")
        until_handled(apart, "a")
