"""PostgreSQL's listening connection is cut, falls silent, or leads through a pooler."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import psycopg2
import pytest
from sqlalchemy import URL, Connection, Engine, create_engine
from sqlalchemy.orm import Session

from sa_jobqueue.dialects.postgresql import PostgreSQL
from sa_jobqueue.wakeups import listening, watcher
from tests.contract.wakeups.models import Parcel, add_parcels, empty
from tests.contract.wakeups.support import SOON, Handled, elsewhere, is_watched, working
from tests.proxy import Proxy
from tests.support import cut_connections, make_engine, until

pytestmark = pytest.mark.only_on("postgresql")


@pytest.fixture
def apart(fresh_database: URL, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine of a database whose connections may be cut; what is away is tried again soon."""
    monkeypatch.setattr(watcher, "FIRST_PAUSE", timedelta(milliseconds=500))
    monkeypatch.setattr(watcher, "LONGEST_PAUSE", timedelta(milliseconds=500))
    engine = empty(make_engine(fresh_database))
    yield engine
    engine.dispose()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the watcher has logged, in one word each."""
    words = {"do not wake this worker": "away", "wake this worker again": "back"}
    messages = [r.getMessage() for r in caplog.records if r.name == "sa_jobqueue.wakeups"]
    return [word for message in messages for part, word in words.items() if part in message]


def test_a_cut_connection_is_replaced_and_that_is_logged_once_each_time(
    apart: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    handled = Handled()

    with working(apart, Parcel, handled), elsewhere(apart.url, Parcel) as add:
        for name in "ab":
            cut_connections(apart.url, "postgresql")
            until(lambda: told(caplog)[-1:] == ["away"], SOON)
            until(lambda: told(caplog)[-1:] == ["back"], SOON)
            add(name)
            assert handled.next() == name

    assert told(caplog) == ["away", "back"] * 2


def test_a_connection_that_is_half_open_is_noticed(
    apart: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = timedelta(seconds=1)
    monkeypatch.setattr(listening, "PROVES_EVERY", second)
    monkeypatch.setattr(listening, "HEARS_WITHIN", second)
    limits = replace(listening.LIMITS, answer=second, pulse=second)
    monkeypatch.setattr(listening, "LIMITS", limits)
    handled = Handled()
    url = apart.url
    with Proxy(url) as proxy:
        first = iter([proxy.url])  # of the watcher; it connects again by the direct way

        def connect() -> object:
            watches = threading.current_thread().name == "sa_jobqueue watcher"
            return connected(next(first, url) if watches else url)

        engine = create_engine(url, creator=connect)
        with working(engine, Parcel, handled, owner="w"), elsewhere(url, Parcel) as add:
            proxy.go_silent()
            until(lambda: told(caplog) == ["away", "back"], SOON)
            add("a")
            assert handled.next() == "a"
        engine.dispose()


def connected(url: URL) -> object:
    plain = url.set(drivername="postgresql")
    return psycopg2.connect(plain.render_as_string(hide_password=False))


def test_nobody_listens_through_a_pooler(
    apart: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def through_pooler(database: PostgreSQL, connection: Connection) -> bool:
        return True

    monkeypatch.setattr(PostgreSQL, "through_pooler", through_pooler)
    handled = Handled()
    with Session(apart) as session:
        add_parcels(session, "a")

    with working(apart, Parcel, handled, owner="w", watched=False) as worker:
        assert handled.next() == "a"
        until(lambda: told(caplog) == ["away"], SOON)
        assert not is_watched(worker)
