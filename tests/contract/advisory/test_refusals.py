"""Where claims by advisory locks are refused; no lock is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, NullPool
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    UnsupportedDatabase,
    advisory_session,
    cancel_claimed,
    complete,
    fail,
    release,
    renew,
)
from tests.contract.subscriptions import add_subscriptions, claim_subscriptions, kept, mark
from tests.servers.errors import NotHere
from tests.servers.pgbouncer import transaction_pooler
from tests.support import make_engine

pytestmark = pytest.mark.only_on("postgresql")


@pytest.mark.parametrize(
    ("isolation", "words"),
    [
        (None, "Use `with advisory_session"),
        ("REPEATABLE READ", "use READ COMMITTED"),
        ("SERIALIZABLE", "use READ COMMITTED"),
    ],
)
def test_a_session_on_an_engine_and_an_isolation_that_hides_what_others_finished_are_refused(
    engine: Engine, isolation: Any, words: str
) -> None:
    isolated = engine.execution_options(isolation_level=isolation or "READ COMMITTED")
    with isolated.connect() as connection:
        session = Session(engine if isolation is None else connection)

        with pytest.raises(UnsupportedDatabase, match=words):
            claim_subscriptions(session)


@pytest.mark.parametrize("isolation", ["SERIALIZABLE", "AUTOCOMMIT"])
def test_an_advisory_session_has_the_right_isolation(
    engine: Engine, db_url: URL, isolation: Any
) -> None:
    isolated = make_engine(db_url, isolation_level=isolation)
    with advisory_session(isolated) as session:
        add_subscriptions(session, 2)
        claimed = claim_subscriptions(session)
        mark(claimed)

        complete(session, claimed[0])
        assert kept(engine) == 2
        session.commit()

        assert kept(engine) == 1
    isolated.dispose()


@pytest.mark.parametrize(
    ("verb", "way_out"),
    [
        (fail, "Mark the row yourself and complete"),
        (cancel_claimed, "Mark the row yourself and complete"),
        (lambda session, jobs: complete(session, jobs, delete=True), r"session\.delete\(\)"),
    ],
)
def test_what_needs_columns_is_refused_without_them(
    engine: Engine, mailing: Session, verb: Callable[..., None], way_out: str
) -> None:
    add_subscriptions(mailing, 1)
    claimed = claim_subscriptions(mailing)

    with pytest.raises(ArgumentError, match=way_out):
        verb(mailing, claimed)

    assert kept(engine) == 1
    renew(mailing, claimed)
    release(mailing, claimed)


@pytest.fixture
def through_pgbouncer(db_url: URL) -> Iterator[Engine]:
    try:
        with transaction_pooler(db_url) as url:
            yield make_engine(url, poolclass=NullPool)
    except NotHere as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


def test_a_transaction_pooler_is_refused(engine: Engine, through_pgbouncer: Engine) -> None:
    with Session(engine) as session:
        add_subscriptions(session, 1)

    # PgBouncer tells each client another number for its server process, even negative numbers.
    for _ in range(8):
        refuse(through_pgbouncer, "connects to the server itself")


@pytest.mark.only_on("sqlite", "mysql", "mariadb")
def test_other_databases_are_refused(shared_engine: Engine) -> None:
    refuse(shared_engine, "use strategy='auto'")


def refuse(engine: Engine, words: str) -> None:
    """See that a session for claims, and a claim on a connection, are refused."""
    with pytest.raises(UnsupportedDatabase, match=words):
        advisory_session(engine).__enter__()
    with engine.connect() as connection, pytest.raises(UnsupportedDatabase, match=words):
        claim_subscriptions(Session(connection))
