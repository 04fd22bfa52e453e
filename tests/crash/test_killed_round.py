"""A process that is killed while it starts a round leaves a start that the next one finishes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection

import pytest
from sqlalchemy import URL, Engine, event
from sqlalchemy.orm import Session

from sa_jobqueue import claim, complete, round_progress, start_round
from sa_jobqueue.events import Event, listens_for
from tests.contract.round_models import RoundBase, Subscriber, add, state
from tests.support import make_engine

from .support import Victim

pytestmark = pytest.mark.by_turns("mysql", "mariadb")

ROWS, CHUNK = 50, 10


@pytest.fixture
def engine(fresh_database: URL) -> Iterator[Engine]:
    engine = make_engine(fresh_database)
    RoundBase.metadata.create_all(engine)
    with Session(engine) as session:
        add(session, Subscriber, ROWS, status="done")
    yield engine
    engine.dispose()


def start_and_wait(url: str, told: Connection) -> None:
    """Start a round, and wait to be killed before the commit of the second chunk."""
    engine = make_engine(url)
    committed: list[Event] = []

    @event.listens_for(engine, "after_cursor_execute")
    def written(conn: object, cursor: object, statement: str, *_: object) -> None:
        in_chunk = statement.startswith("UPDATE round_subscriber") and "status=CASE" in statement
        if in_chunk and committed:
            told.send(len(committed))
            signal.pause()

    listens_for(Subscriber, "after_change")(committed.append)
    start_round(engine, Subscriber, chunk=CHUNK)


def test_the_next_call_finishes_the_same_round_and_no_row_comes_into_it_twice(
    engine: Engine,
) -> None:
    with Victim(engine, start_and_wait) as process:
        assert process.hears() == 1
    with Session(engine) as session:
        interrupted = round_progress(session, Subscriber)
        session.commit()
        done = claim(session, Subscriber, owner="w", limit=5)
        complete(session, done)
        session.commit()

        number = start_round(engine, Subscriber, chunk=CHUNK)

        assert (interrupted.started, interrupted.total) == (False, CHUNK)
        assert number == interrupted.round == 1
        finished = dict.fromkeys(range(1, len(done) + 1), ("done", 1))
        waiting = dict.fromkeys(range(1, ROWS + 1), ("unclaimed", 1))
        assert state(session) == waiting | finished
        assert round_progress(session, Subscriber).started
        session.commit()
        assert start_round(engine, Subscriber) == 2
