"""A connection is an owner under its number and its start."""

from __future__ import annotations

import socket

import pytest
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    UnsupportedDatabase,
    claim,
    claimed_by,
    connection_owner,
    owner_state,
)
from tests.contract.owners.support import (
    ALIVE,
    DEAD,
    UNKNOWN,
    connected,
    rewritten,
    wait_until,
)
from tests.models import Email, add_emails, recipients
from tests.support import SERVERS


@pytest.mark.only_on(*SERVERS)
def test_a_connection_claims_under_its_one_name_which_fits_the_column(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 70)
    add_emails(session, "a")
    with connected(engine) as (_, bound):
        owner = connection_owner(bound)
        assert len(owner) == 64

        (email,) = claim(bound, Email, owner=owner)
        bound.commit()

        assert email.owner == owner == connection_owner(bound)
        assert type(email.owner) is str
        assert recipients(claimed_by(session, Email, owner)) == ["a"]


@pytest.mark.only_on(*SERVERS)
def test_a_connection_is_alive_until_it_is_closed_also_to_older_transactions(
    engine: Engine, session: Session
) -> None:
    """PostgreSQL keeps the list as it was when the transaction first asked for it."""
    with connected(engine) as (_, first):
        assert owner_state(session, connection_owner(first)) is ALIVE

        with connected(engine) as (_, second):
            name = connection_owner(second)
            assert owner_state(session, name) is ALIVE
    session.rollback()
    wait_until(session, name, DEAD)


@pytest.mark.only_on(*SERVERS)
def test_a_connection_from_before_the_server_was_restarted_is_dead(
    engine: Engine, session: Session, db_alias: str
) -> None:
    """MySQL and MariaDB know the start of the server alone, two seconds more or less."""
    with connected(engine) as (connection, bound):
        name = connection_owner(bound)
        if db_alias != "postgresql":  # the name does not change with the clock
            connection.exec_driver_sql("SET timestamp = 1000000000")
            assert connection_owner(bound) == name
            connection.exec_driver_sql("SET timestamp = DEFAULT")
        before, started = name.rsplit(".", 1)
        offs = (-1, 0, 1) if db_alias == "postgresql" else (-3, -2, 2, 3)
        states = [owner_state(session, f"{before}.{int(started) + off}") for off in offs]

        assert owner_state(session, f"{before}.{int(started) // 2}") is DEAD
    assert states == ([DEAD, ALIVE, DEAD] if len(offs) == 3 else [DEAD, ALIVE, ALIVE, DEAD])


@pytest.mark.only_on(*SERVERS)
def test_a_connection_to_another_database_is_unknown(session: Session, fresh_database: URL) -> None:
    elsewhere = create_engine(fresh_database)
    with connected(elsewhere) as (_, bound):
        assert owner_state(session, connection_owner(bound)) is UNKNOWN
    elsewhere.dispose()


@pytest.mark.parametrize("bound_to", ["engine", "nothing"])
def test_a_session_that_may_change_its_connection_is_no_owner(
    engine: Engine, bound_to: str
) -> None:
    bind = engine if bound_to == "engine" else None

    with Session(bind) as session, pytest.raises(ArgumentError, match=r"Or use Owner\(engine\)"):
        connection_owner(session)


@pytest.mark.only_on("sqlite", "postgresql")
def test_where_the_start_of_a_connection_is_not_known_it_is_no_owner(
    engine: Engine, db_alias: str
) -> None:
    """SQLite has no list of connections. A clock set back makes them older than the server."""
    with (
        rewritten(engine, r"pg_postmaster_start_time\(\)", "now()"),
        connected(engine) as (_, bound),
        pytest.raises(UnsupportedDatabase, match=r"use Owner\(engine\)"),
    ):
        connection_owner(bound)
