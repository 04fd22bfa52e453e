"""Where claims by advisory locks are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pytest
from sqlalchemy import URL, Engine, NullPool
from sqlalchemy.orm import Session

from sa_jobqueue import UnsupportedDatabase, advisory_session, complete
from tests.contract.subscriptions import add_subscriptions, claim_subscriptions, kept, mark
from tests.servers.errors import NotHere
from tests.servers.pgbouncer import transaction_pooler
from tests.support import make_engine

pytestmark = pytest.mark.only_on("postgresql")


def test_a_session_on_an_engine_is_refused(engine: Engine, session: Session) -> None:
    add_subscriptions(session, 1)

    with pytest.raises(UnsupportedDatabase, match="Use `with advisory_session"):
        claim_subscriptions(session)

    assert kept(engine) == 0


@pytest.mark.parametrize("isolation", ["REPEATABLE READ", "SERIALIZABLE"])
def test_an_isolation_that_hides_what_others_finished_is_refused(
    engine: Engine, isolation: str
) -> None:
    with engine.connect().execution_options(isolation_level=isolation) as connection:
        session = Session(connection)
        add_subscriptions(session, 1)

        with pytest.raises(UnsupportedDatabase, match="use READ COMMITTED"):
            claim_subscriptions(session)

        assert kept(engine) == 0


@pytest.mark.parametrize("isolation", ["SERIALIZABLE", "AUTOCOMMIT"])
def test_an_advisory_session_has_the_right_isolation(
    engine: Engine, db_url: URL, isolation: str
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
    assert kept(engine) == 0
    isolated.dispose()


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
        with pytest.raises(UnsupportedDatabase, match="connects to the server itself"):
            through(advisory_session(through_pgbouncer))
        with (
            through_pgbouncer.connect() as connection,
            pytest.raises(UnsupportedDatabase, match="connects to the server itself"),
        ):
            claim_subscriptions(Session(connection))

    assert kept(engine) == 0


def through(context: AbstractContextManager[object]) -> None:
    with context:
        pass


@pytest.mark.only_on("sqlite", "mysql", "mariadb")
def test_other_databases_are_refused(shared_engine: Engine) -> None:
    with pytest.raises(UnsupportedDatabase, match="use strategy='auto'"):
        through(advisory_session(shared_engine))
    with (
        shared_engine.connect() as connection,
        pytest.raises(UnsupportedDatabase, match="use strategy='auto'"),
    ):
        claim_subscriptions(Session(connection))
