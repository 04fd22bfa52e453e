"""Owners and connections are alive, dead or unknown: what servers can tell, and to whom."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Engine, NullPool, create_engine
from sqlalchemy.orm import Session

from sa_jobqueue import Owner, UnsupportedDatabase, claim, claimed_by, connection_owner, owner_state
from tests.contract.owners.conftest import (
    ALIVE,
    DEAD,
    UNKNOWN,
    connected,
    rewritten,
    state_of,
    wait_until,
)
from tests.contract.owners.restricted_user import administering, restricted_user
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


@pytest.fixture
def restricted(engine: Engine) -> Iterator[Engine]:
    """An engine of a user who may read and write the tables, and nothing else."""
    with restricted_user(engine) as theirs:
        yield theirs


@pytest.mark.only_on(*SERVERS)
def test_users_see_which_owners_of_each_other_are_alive_and_which_are_dead(
    engine: Engine, session: Session, restricted: Engine
) -> None:
    add_emails(session, "a")
    with Session(restricted) as theirs:
        for owning, asking in [(engine, theirs), (restricted, session)]:
            with Owner(owning) as owner:
                name = owner.name
                assert owner_state(asking, name) is ALIVE
                (email,) = claim(theirs, Email, owner=owner)
                assert email.owner == name
                theirs.rollback()
            assert owner_state(asking, name) is DEAD


@pytest.mark.only_on(*SERVERS)
def test_a_restricted_user_sees_its_own_connections_and_never_that_anothers_is_gone(
    engine: Engine, session: Session, restricted: Engine, db_alias: str
) -> None:
    with (
        connected(engine) as (_, bound),
        connected(restricted) as (_, own),
        Session(restricted) as theirs,
    ):
        name = connection_owner(bound)
        assert owner_state(theirs, name) is UNKNOWN
        assert owner_state(theirs, connection_owner(own)) is ALIVE
    wait_until(session, name, DEAD)

    with Session(restricted) as theirs:
        assert owner_state(theirs, name) is (DEAD if db_alias == "postgresql" else UNKNOWN)


@pytest.mark.only_on("postgresql")
def test_a_user_who_may_not_see_locks_has_no_owners_and_finds_all_unknown(
    fresh_database: URL,
) -> None:
    engine = create_engine(fresh_database)
    with administering(engine) as run, restricted_user(engine) as theirs:
        run("REVOKE SELECT ON pg_locks FROM PUBLIC")
        with Owner(engine) as owner, Session(theirs) as own:
            assert owner_state(own, owner.name) is UNKNOWN
        with pytest.raises(UnsupportedDatabase, match="GRANT SELECT ON pg_locks"):
            Owner(theirs).open()
    engine.dispose()


#: What a server says of itself, and whether it stands alone.
PRIMARY_OR_STANDBY = {"false": True, "true": False}
VARIABLES: dict[tuple[str, str], bool] = {
    ("", ""): True,
    ("wsrep_provider", "none"): True,
    ("wsrep_provider", "/usr/lib/galera/libgalera_smm.so"): False,
    ("group_replication_group_name", ""): True,
    ("group_replication_group_name", "3c1b5cbc-8e0d-4a7c-9a5a-0a2bb4e4ecb0"): False,
}


def as_if_it_said(engine: Engine, said: Any) -> AbstractContextManager[None]:
    """Have the server say that it is a standby, or that it has these variables."""
    if engine.dialect.name == "postgresql":
        return rewritten(engine, r"pg_is_in_recovery\(\)", said)
    rows = " UNION ALL ".join(
        f"SELECT '{name}' AS variable_name, '{value}' AS variable_value"
        for name, value in {"server_uuid": "1", "server_uid": "1", said[0]: said[1]}.items()
    )
    return rewritten(engine, r"(?i)\w+_schema\.global_variables", f"({rows}) AS variables")


@pytest.mark.only_on(*SERVERS)
def test_in_a_cluster_owners_and_connections_are_alive_or_unknown(
    engine: Engine, db_alias: str
) -> None:
    said: dict[Any, bool] = PRIMARY_OR_STANDBY if db_alias == "postgresql" else VARIABLES
    for case, alone in said.items():
        gone = DEAD if alone else UNKNOWN
        with as_if_it_said(engine, case):
            with Owner(engine) as owner, connected(engine) as (_, bound):
                name, of_connection = owner.name, connection_owner(bound)
                assert state_of(engine, name) is ALIVE
                assert state_of(engine, of_connection) is ALIVE
            assert state_of(engine, name) is gone, case
            with Session(engine) as session:
                wait_until(session, of_connection, gone)


@pytest.mark.only_on(*SERVERS)
def test_behind_a_pooler_there_are_no_owners_and_others_are_alive_or_unknown(
    engine: Engine, db_alias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Inner: no pooler stands between this test and its server.
    database = "postgresql.PostgreSQL" if db_alias == "postgresql" else "innodb.InnoDB"
    with Owner(engine) as owner:
        name = owner.name
        monkeypatch.setattr(f"sa_jobqueue.databases.{database}.through_pooler", lambda *_: True)
        assert state_of(engine, name) is ALIVE

    assert state_of(engine, name) is UNKNOWN
    with pytest.raises(UnsupportedDatabase, match=r"PGlite. Give an engine that connects"):
        Owner(engine).open()


@pytest.mark.only_on("postgresql")
def test_where_all_clients_share_one_session_no_lock_of_the_session_is_trusted(
    engine: Engine,
) -> None:
    pglite = rewritten(engine, r"version\(\) ~", "'PGlite' ~")
    with pglite, engine.connect() as connection, Session(connection) as session:
        add_emails(session, "anna")
        with pytest.raises(UnsupportedDatabase, match="PGlite"):
            Owner(engine).open()
        with pytest.raises(UnsupportedDatabase, match="PGlite"):
            claim(session, Email, owner="w", strategy="advisory")


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("foreign", [1, 2], ids=["lock elsewhere", "others elsewhere"])
def test_an_engine_that_leads_to_several_databases_has_no_owners(
    engine: Engine, fresh_database: URL, foreign: int
) -> None:
    """As behind a load balancer: the lock is on one server and looked for on another."""
    dialect = engine.dialect
    urls = [fresh_database if number == foreign else engine.url for number in range(3)]
    made: list[URL] = []

    def connect() -> Any:
        made.append(urls[len(made) % 3])
        args, kwargs = dialect.create_connect_args(made[-1])
        return dialect.loaded_dbapi.connect(*args, **kwargs)

    split = create_engine(engine.url, creator=connect, poolclass=NullPool)
    split.connect().close()
    made.clear()

    with pytest.raises(UnsupportedDatabase, match="different servers or databases"):
        Owner(split).open()


@pytest.mark.only_on("sqlite")
def test_an_owner_of_a_file_is_known_by_each_of_its_paths_and_not_in_a_copy(
    engine: Engine, tmp_path: Path
) -> None:
    file = engine.url.database or ""
    (tmp_path / "link.db").symlink_to(file)
    # By another process: to close a file that was opened here drops SQLite's locks on it.
    subprocess.run(("cp", file, tmp_path / "copy.db"), check=True)
    unnamed = create_engine("sqlite://", creator=lambda: sqlite3.connect(file))
    linked, copied = (create_engine(f"sqlite:///{tmp_path / name}.db") for name in ("link", "copy"))

    with Owner(unnamed) as owner:
        states = [state_of(each, owner.name) for each in (engine, linked, copied)]

    assert states == [ALIVE, ALIVE, UNKNOWN]
    for each in (unnamed, linked, copied):
        each.dispose()
