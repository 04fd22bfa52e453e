"""A connection is an owner under its number and its start."""

from __future__ import annotations

import socket

import pytest
from sqlalchemy import URL, Engine, bindparam, create_engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    Owner,
    OwnerState,
    UnsupportedDatabase,
    claim,
    claimed_by,
    connection_owner,
    owner_state,
)
from sa_jobqueue.dialects import database_of
from sa_jobqueue.dialects.postgresql import owner_liveness as postgresql_liveness
from sa_jobqueue.owners.alive import is_connection_owner, owner_states
from sa_jobqueue.owners.owner import ConnectionOwner
from tests.contract.owners.support import connected, wait_until
from tests.models import Email, add_emails, recipients
from tests.support import SERVERS, statements_seen

ALIVE, DEAD, UNKNOWN = OwnerState.ALIVE, OwnerState.DEAD, OwnerState.UNKNOWN


@pytest.mark.only_on(*SERVERS)
def test_a_connection_claims_under_its_name(engine: Engine, session: Session) -> None:
    add_emails(session, "a")
    with connected(engine) as (_, bound):
        owner = connection_owner(bound)

        (email,) = claim(bound, Email, owner=owner)
        bound.commit()

        assert email.owner == owner
        assert type(email.owner) is str
        assert recipients(claimed_by(session, Email, owner)) == ["a"]


@pytest.mark.only_on(*SERVERS)
def test_the_name_of_a_connection_has_its_number_and_a_start(engine: Engine) -> None:
    with connected(engine) as (connection, bound):
        name = connection_owner(bound)
        own = database_of(connection).own_process(connection)

    assert own is not None
    assert name.endswith(f"~@{own.id}.{own.started}")
    assert isinstance(name, ConnectionOwner)
    assert is_connection_owner(name)
    assert len(name) <= 64


@pytest.mark.only_on(*SERVERS)
def test_the_name_of_a_connection_fits_the_column(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "h" * 70)

    with connected(engine) as (_, bound):
        name = connection_owner(bound)

    assert len(name) == 64


def test_an_owner_is_not_a_connection(owner: Owner) -> None:
    assert not is_connection_owner(owner.name)
    assert not is_connection_owner("mailer-1")


@pytest.mark.only_on(*SERVERS)
def test_a_connection_has_one_name(engine: Engine) -> None:
    with connected(engine) as (_, bound):
        names = set()
        for _ in range(3):
            names.add(connection_owner(bound))
            bound.commit()

    assert len(names) == 1


@pytest.mark.only_on(*SERVERS)
def test_a_connection_is_alive_until_it_is_closed(engine: Engine, session: Session) -> None:
    with connected(engine) as (_, bound):
        name = connection_owner(bound)
        alive = owner_state(session, name)
        session.rollback()

    assert alive is ALIVE
    wait_until(session, name, DEAD)


@pytest.mark.only_on(*SERVERS)
def test_a_transaction_sees_connections_that_are_younger(engine: Engine, session: Session) -> None:
    """PostgreSQL keeps the list as it was when the transaction first asked for it."""
    with connected(engine) as (_, first):
        owner_state(session, connection_owner(first))

        with connected(engine) as (_, second):
            alive = owner_state(session, connection_owner(second))

    assert alive is ALIVE


@pytest.mark.only_on(*SERVERS)
def test_a_connection_from_before_the_server_was_restarted_is_dead(
    engine: Engine, session: Session
) -> None:
    with connected(engine) as (_, bound):
        name = connection_owner(bound)
        before, started = name.rsplit(".", 1)

        assert owner_state(session, f"{before}.{int(started) // 2}") is DEAD
        assert owner_state(session, name) is ALIVE


@pytest.mark.only_on("mysql", "mariadb")
def test_the_start_of_the_server_may_be_two_seconds_off(engine: Engine, session: Session) -> None:
    with connected(engine) as (_, bound):
        before, started = connection_owner(bound).rsplit(".", 1)
        states = [owner_state(session, f"{before}.{int(started) + off}") for off in (-3, -2, 2, 3)]

    assert states == [DEAD, ALIVE, ALIVE, DEAD]


@pytest.mark.only_on("mysql", "mariadb")
def test_the_start_of_the_server_does_not_change_with_the_clock(engine: Engine) -> None:
    with connected(engine) as (connection, bound):
        name = connection_owner(bound)
        connection.exec_driver_sql("SET timestamp = 1000000000")

        assert connection_owner(bound) == name
        connection.exec_driver_sql("SET timestamp = DEFAULT")


@pytest.mark.only_on("postgresql")
def test_a_connection_whose_number_another_connection_has_now_is_dead(
    engine: Engine, session: Session
) -> None:
    with connected(engine) as (_, bound):
        before, started = connection_owner(bound).rsplit(".", 1)

        assert owner_state(session, f"{before}.{int(started) - 1}") is DEAD


@pytest.mark.only_on(*SERVERS)
def test_a_connection_to_another_database_is_unknown(session: Session, fresh_database: URL) -> None:
    elsewhere = create_engine(fresh_database)
    with connected(elsewhere) as (_, bound):
        name = connection_owner(bound)

        assert owner_state(session, name) is UNKNOWN
    elsewhere.dispose()


@pytest.mark.only_on(*SERVERS)
def test_many_connections_are_looked_up_in_few_statements(engine: Engine, session: Session) -> None:
    connection = session.connection()
    with connected(engine) as (_, bound):
        name = connection_owner(bound)
        front, start = name.split("@")[0], name.split(".")[-1]
        gone = [f"{front}@{10**9 + number}.{start}" for number in range(500)]

        with statements_seen(engine) as seen:
            states = owner_states(connection, [name, *gone])

        assert states == {name: ALIVE} | dict.fromkeys(gone, DEAD)
    assert len(seen) <= 5


@pytest.mark.parametrize("bound_to", ["engine", "nothing"])
def test_a_session_that_may_change_its_connection_is_no_owner(
    engine: Engine, bound_to: str
) -> None:
    bind = engine if bound_to == "engine" else None

    with Session(bind) as session, pytest.raises(ArgumentError, match=r"Or use Owner\(engine\)"):
        connection_owner(session)


@pytest.mark.only_on("sqlite")
def test_a_database_without_a_list_of_connections_has_no_connection_owners(engine: Engine) -> None:
    with (
        connected(engine) as (_, bound),
        pytest.raises(UnsupportedDatabase, match=r"use Owner\(engine\)"),
    ):
        connection_owner(bound)


@pytest.mark.only_on(*SERVERS)
@pytest.mark.usefixtures("behind_pooler")
def test_behind_a_pooler_a_connection_is_no_owner(engine: Engine) -> None:
    with (
        connected(engine) as (_, bound),
        pytest.raises(UnsupportedDatabase, match="through a pooler"),
    ):
        connection_owner(bound)


@pytest.mark.only_on("postgresql")
def test_after_the_clock_was_set_back_connections_are_no_owners(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections would look older than the server, and thus dead."""
    later = text(postgresql_liveness._PROCESSES.text.replace("pg_postmaster_start_time()", "now()"))
    monkeypatch.setattr(
        postgresql_liveness, "_PROCESSES", later.bindparams(bindparam("pids", expanding=True))
    )

    with (
        connected(engine) as (_, bound),
        pytest.raises(UnsupportedDatabase, match=r"use Owner\(engine\)"),
    ):
        connection_owner(bound)
