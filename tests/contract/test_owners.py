"""Owners: their names, and what is known of their lives."""

from __future__ import annotations

import re
import secrets
import shutil
import signal
import socket
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, Connection, Engine, NullPool, bindparam, create_engine, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_jobqueue import (
    ArgumentError,
    LockLost,
    LockNotHeld,
    Owner,
    OwnerState,
    UnsupportedDatabase,
    claim,
    claimed_by,
    complete,
    connection_owner,
    owner_state,
)
from sa_jobqueue.dialects import database_of
from sa_jobqueue.dialects.innodb import database as innodb_database
from sa_jobqueue.dialects.postgresql import database as postgresql_database
from sa_jobqueue.owners.owner import ConnectionOwner, is_connection_owner, lock_name, owner_states
from tests.models import Base, Email, add_emails, recipients
from tests.servers.server import is_denied
from tests.support import make_engine, statements_seen

ALIVE, DEAD, UNKNOWN = OwnerState.ALIVE, OwnerState.DEAD, OwnerState.UNKNOWN

SERVERS = ("postgresql", "mysql", "mariadb")


@pytest.fixture
def owner(engine: Engine) -> Iterator[Owner]:
    with Owner(engine) as owner:
        yield owner


# Names


def test_a_name_says_the_host_the_database_and_something_random(owner: Owner) -> None:
    label, identity, random = owner.name.split("~")

    assert label == socket.gethostname()[:34]
    assert re.fullmatch("[0-9a-f]{16}", identity)
    assert re.fullmatch("[0-9a-f]{12}", random)


def test_two_owners_differ_in_what_is_random_only(engine: Engine, owner: Owner) -> None:
    with Owner(engine) as other_owner:
        assert owner.name != other_owner.name
        assert owner.name[:-12] == other_owner.name[:-12]


def test_a_name_of_the_callers_comes_first(engine: Engine) -> None:
    with Owner(engine, "mailer 1") as owner:
        assert owner.name.startswith("mailer 1~")


def test_the_longest_name_fits_the_column(engine: Engine) -> None:
    with Owner(engine, "n" * 34) as owner:
        assert len(owner.name) == 64
        assert owner.name.startswith("n" * 34 + "~")


def test_the_name_of_a_long_host_is_cut(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "h~" * 40)

    with Owner(engine) as owner:
        assert len(owner.name) == 64
        assert owner.name.startswith("h-h-")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("n" * 35, "1 to 34 characters.* has 35: .*shorten it"),
        ("", "1 to 34 characters.* has 0"),
        ("a~b", "'~' is reserved in owners: 'a~b'; use another character"),
        (7, "is a str, not int: 7"),
    ],
)
def test_a_name_that_cannot_be_is_refused(engine: Engine, name: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Owner(engine, name)


def test_an_owner_needs_an_engine(session: Session) -> None:
    with pytest.raises(ArgumentError, match=r"needs an Engine, not Session; .* synchronous driver"):
        Owner(session)  # type: ignore[arg-type]  # what is refused


@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_owner_that_is_not_open_says_how_to_open_it(engine: Engine, moment: str) -> None:
    owner = Owner(engine)
    if moment == "after":
        owner.open()
        owner.close()

    with pytest.raises(LockNotHeld, match=r"not open; use: with Owner\(engine\) as owner:"):
        _ = owner.name


def test_an_owner_is_opened_once(owner: Owner) -> None:
    with pytest.raises(ArgumentError, match="open already; make another Owner"):
        owner.open()


def test_an_owner_that_was_closed_and_opened_again_has_another_name(engine: Engine) -> None:
    owner = Owner(engine)
    owner.open()
    first = owner.name
    owner.close()

    with owner:
        assert owner.name != first


def test_an_owner_may_be_closed_twice(engine: Engine) -> None:
    owner = Owner(engine)
    owner.open()

    owner.close()
    owner.close()

    assert repr(owner).endswith("not open>")


def test_the_name_costs_no_round_trip(engine: Engine, owner: Owner) -> None:
    with statements_seen(engine) as seen:
        names = {owner.name for _ in range(100)}

    assert len(names) == 1
    assert seen == []


# Claims


def test_an_owner_claims_under_its_name(session: Session, owner: Owner) -> None:
    add_emails(session, "a", "b", "c")

    emails = claim(session, Email, owner=owner, limit=2)
    session.commit()

    assert {email.owner for email in emails} == {owner.name}
    complete(session, emails)
    session.commit()


def test_the_claims_of_an_owner_are_found_by_it_and_by_its_name(
    session: Session, other: Session, owner: Owner
) -> None:
    (email,) = add_emails(session, "a")
    claim(session, Email, owner=owner)
    session.commit()
    assert email.owner is not None

    assert recipients(claimed_by(other, Email, owner)) == ["a"]
    assert recipients(claimed_by(other, Email, email.owner)) == ["a"]


def test_a_string_that_looks_like_an_owner_does_not_claim(session: Session, owner: Owner) -> None:
    with pytest.raises(ArgumentError, match=r"'~' is reserved in owners.*give the Owner itself"):
        claim(session, Email, owner=owner.name)


def test_an_owner_that_is_not_open_does_not_claim(session: Session, engine: Engine) -> None:
    with pytest.raises(LockNotHeld, match="not open"):
        claim(session, Email, owner=Owner(engine))


# States of owners


def test_an_owner_is_alive_until_it_is_closed(session: Session, engine: Engine) -> None:
    with Owner(engine) as owner:
        name = owner.name
        alive = owner_state(session, name)
        session.commit()

    assert (alive, owner_state(session, name)) == (ALIVE, DEAD)


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.only_on(*SERVERS)
def test_a_transaction_sees_owners_that_are_younger(engine: Engine, level: Any) -> None:
    with Session(engine.execution_options(isolation_level=level)) as session:
        session.scalars(select(Email)).all()

        with Owner(engine) as owner:
            name = owner.name
            alive = owner_state(session, name)

        assert (alive, owner_state(session, name)) == (ALIVE, DEAD)


def test_the_state_of_an_owner_is_read_in_every_kind_of_session(
    engine: Engine, owner: Owner
) -> None:
    scoped = scoped_session(sessionmaker(engine))
    with Session(engine.execution_options(isolation_level="AUTOCOMMIT")) as in_autocommit:
        assert owner_state(in_autocommit, owner.name) is ALIVE
        assert owner_state(scoped, owner.name) is ALIVE
    scoped.remove()


def test_to_ask_for_an_owner_does_not_take_its_lock(session: Session, engine: Engine) -> None:
    with Owner(engine) as owner:
        name = owner.name

    states = [owner_state(session, name) for _ in range(3)]

    assert states == [DEAD] * 3


def test_nothing_is_known_of_plain_names_and_nothing_asked(
    engine: Engine, session: Session
) -> None:
    connection = session.connection()
    names = ["mailer-1", "host-12-ab", "1", ""]

    with statements_seen(engine) as seen:
        states = owner_states(connection, names)

    assert states == dict.fromkeys(names, UNKNOWN)
    assert seen == []


MALFORMED: dict[str, Callable[[str, str], str]] = {
    "no label": lambda identity, random: f"~{identity}~{random}",
    "no random part": lambda identity, random: f"host~{identity}~",
    "two parts": lambda identity, random: f"host~{identity}",
    "four parts": lambda identity, random: f"a~b~{identity}~{random}",
    "short identity": lambda identity, random: f"host~{identity[1:]}~{random}",
    "long random part": lambda identity, random: f"host~{identity}~{random}0",
    "upper case": lambda identity, random: f"host~{identity}~{'A' * 12}",
    "line break": lambda identity, random: f"host~{identity}~{random}\n",
    "no connection": lambda identity, random: f"host~{identity}~@",
    "no start": lambda identity, random: f"host~{identity}~@12",
    "negative": lambda identity, random: f"host~{identity}~@-1.5",
    "too long": lambda identity, random: f"host~{identity}~@{'9' * 19}.1",
    "other digits": lambda identity, random: f"host~{identity}~@\u0661.\u0661",
}


@pytest.mark.parametrize("how", MALFORMED)
def test_nothing_is_known_of_a_malformed_name(session: Session, owner: Owner, how: str) -> None:
    _, identity, random = owner.name.split("~")

    name = MALFORMED[how](identity, random)

    assert owner_state(session, name) is UNKNOWN
    assert not is_connection_owner(name)


def test_nothing_is_known_of_an_owner_of_another_database(
    session: Session, fresh_database: URL
) -> None:
    elsewhere = create_engine(fresh_database)
    with Owner(elsewhere) as owner:
        name = owner.name
        alive = owner_state(session, name)
        session.rollback()
    dead = owner_state(session, name)
    elsewhere.dispose()

    assert (alive, dead) == (UNKNOWN, UNKNOWN)


def test_nothing_is_known_of_an_owner_of_another_server(session: Session, owner: Owner) -> None:
    label, identity, random = owner.name.split("~")
    there = f"{label}~{identity[::-1]}~{random}"

    assert owner_state(session, there) is UNKNOWN


def test_many_owners_are_looked_up_in_few_statements(engine: Engine, session: Session) -> None:
    connection = session.connection()
    with Owner(engine) as dead:
        dead_name = dead.name
    with Owner(engine) as first, Owner(engine) as second:
        names = [first.name, second.name, dead_name, "plain", *lookalikes(first.name, 500)]

        with statements_seen(engine) as seen:
            states = owner_states(connection, names)

        assert states[first.name] is states[second.name] is ALIVE
        assert states["plain"] is UNKNOWN
        assert {states[name] for name in names[4:]} == {states[dead_name]} == {DEAD}
    assert len(without_pings(seen)) <= 5


def lookalikes(name: str, count: int) -> list[str]:
    """Make up names of dead owners."""
    return [f"{name[:-12]}{number:012x}" for number in range(count)]


def without_pings(seen: list[str]) -> list[str]:
    """Leave out how locks are kept alive, meanwhile, on their own connections."""
    pings = ("SELECT pg_backend_pid()", "SELECT CONNECTION_ID()")
    return [statement for statement in seen if statement not in pings]


@pytest.mark.only_on("mysql", "mariadb")
def test_to_ask_for_a_state_leaves_the_transaction_to_the_next_claim(
    session: Session, owner: Owner
) -> None:
    owner_state(session, owner.name)

    connection = session.connection()

    assert database_of(connection).begin(connection), "it was begun, as REPEATABLE READ"


# Owners that lose their lock


def cut(name: str, engine: Engine) -> None:
    """Have the server end the connection that an owner's lock is on."""
    with engine.connect() as connection:
        holder = database_of(connection).named_locks().holder(connection, lock_name(name))
        assert holder is not None
        process = holder.process
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": process})
        else:
            connection.exec_driver_sql(f"KILL {process}")


def name_after_loss(owner: Owner, before: str) -> str:
    """Use an owner until it says that it has lost its lock; return its next name."""
    with pytest.raises(LockLost, match=f"'{before}' has lost its lock"):
        ask_while_it_is(before, owner)
    return owner.name


def ask_while_it_is(before: str, owner: Owner) -> None:
    """Ask an owner for its name: the news of a lost connection takes a moment."""
    while owner.name == before:
        pass


@pytest.mark.only_on(*SERVERS)
def test_an_owner_that_lost_its_lock_says_so_once_and_goes_on_under_another_name(
    engine: Engine, session: Session
) -> None:
    with Owner(engine, "mailer") as owner:
        before = owner.name
        cut(before, engine)

        after = name_after_loss(owner, before)

        assert after.startswith("mailer~")
        assert (owner.name, after == before) == (after, False)
        assert owner_state(session, before) is DEAD
        assert owner_state(session, after) is ALIVE


@pytest.mark.only_on(*SERVERS)
def test_an_owner_that_lost_its_lock_does_not_claim_under_the_old_name(
    engine: Engine, session: Session, owner: Owner
) -> None:
    add_emails(session, "a")
    before = owner.name
    cut(before, engine)

    with pytest.raises(LockLost, match="roll back, and claim again"):
        claim_until_lost(session, owner)
    (email,) = claim(session, Email, owner=owner)

    assert email.owner == owner.name != before


def claim_until_lost(session: Session, owner: Owner) -> None:
    while True:
        claim(session, Email, owner=owner)
        session.rollback()


@pytest.mark.only_on(*SERVERS)
def test_an_owner_that_lost_its_lock_is_closed_quietly(engine: Engine, session: Session) -> None:
    with Owner(engine) as owner:
        name = owner.name
        cut(name, engine)

    assert owner_state(session, name) is DEAD


@pytest.mark.only_on(*SERVERS)
def test_a_loss_is_told_once_the_server_is_there_again(
    engine: Engine, owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = owner.name
    cut(before, engine)
    with monkeypatch.context() as away:
        away.setattr(type(engine.pool), "connect", no_server)
        away.setattr(type(engine.pool), "recreate", no_server)
        with pytest.raises(ConnectionError):
            ask_while_it_is(before, owner)

    assert name_after_loss(owner, before) != before


def no_server(pool: Any) -> Any:
    raise ConnectionError


# Servers that cannot tell


@pytest.fixture
def in_cluster(db_alias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the server look like one node of several."""
    if db_alias == "postgresql":
        standby = postgresql_database._DATABASE.replace("pg_is_in_recovery()", "true")
        monkeypatch.setattr(postgresql_database, "_DATABASE", standby)
    else:
        monkeypatch.setattr(innodb_database, "_IN_CLUSTER", ("datadir",))  # one that is never empty


@pytest.mark.only_on(*SERVERS)
@pytest.mark.usefixtures("in_cluster")
def test_in_a_cluster_an_owner_is_alive_or_nothing_is_known(
    engine: Engine, session: Session
) -> None:
    with Owner(engine) as owner:
        name = owner.name
        alive = owner_state(session, name)

    assert (alive, owner_state(session, name)) == (ALIVE, UNKNOWN)


@pytest.mark.only_on(*SERVERS)
@pytest.mark.usefixtures("in_cluster")
def test_in_a_cluster_a_connection_is_alive_or_nothing_is_known(
    engine: Engine, session: Session
) -> None:
    with connected(engine) as (_, bound):
        name = connection_owner(bound)
        alive = owner_state(session, name)
        session.rollback()

    assert alive is ALIVE
    wait_until(session, name, UNKNOWN)


@pytest.mark.only_on("mysql", "mariadb")
@pytest.mark.parametrize(
    ("variables", "alone"),
    [
        ({}, True),
        ({"wsrep_provider": "none"}, True),
        ({"wsrep_provider": ""}, True),
        ({"wsrep_provider": "/usr/lib/galera/libgalera_smm.so"}, False),
        ({"group_replication_group_name": ""}, True),
        ({"group_replication_group_name": "3c1b5cbc-8e0d-4a7c-9a5a-0a2bb4e4ecb0"}, False),
    ],
)
def test_a_node_of_a_cluster_is_known_by_its_variables(
    session: Session, variables: dict[str, str], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = session.connection()
    database = database_of(connection)
    rows = " UNION ALL ".join(
        f"SELECT '{name}' AS variable_name, '{value}' AS variable_value"
        for name, value in {"server_uuid": "1", "server_uid": "1", **variables}.items()
    )
    monkeypatch.setattr(type(database), "global_variables", f"({rows}) AS variables")

    server = database.server_of(connection)

    assert server is not None
    assert server.alone is alone


@pytest.fixture
def behind_pooler(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the connections look as if a pooler stood between them and the server."""
    with engine.connect() as connection:
        kind = type(database_of(connection))
    monkeypatch.setattr(kind, "through_pooler", lambda *_: True)


@pytest.mark.usefixtures("behind_pooler")
def test_behind_a_pooler_there_are_no_owners(engine: Engine) -> None:
    with pytest.raises(UnsupportedDatabase, match=r"a pooler stands .*; give an engine that leads"):
        Owner(engine).open()


def test_behind_a_pooler_an_owner_is_alive_or_nothing_is_known(
    engine: Engine, session: Session, request: pytest.FixtureRequest
) -> None:
    with Owner(engine) as owner:
        name = owner.name
        request.getfixturevalue("behind_pooler")
        alive = owner_state(session, name)

    assert (alive, owner_state(session, name)) == (ALIVE, UNKNOWN)


def test_an_owner_leaves_the_pool_alone(engine: Engine) -> None:
    narrow = make_engine(engine.url, pool_size=1, max_overflow=0, pool_timeout=1)

    with Session(narrow) as session:
        session.connection()
        with Owner(narrow) as owner:
            assert owner_state(session, owner.name) is ALIVE
    narrow.dispose()


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("foreign", [1, 2], ids=["lock elsewhere", "others elsewhere"])
def test_an_engine_that_leads_to_several_databases_has_no_owners(
    engine: Engine, fresh_database: URL, foreign: int
) -> None:
    """As behind a load balancer: the lock is here, and is looked for there."""
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
def test_an_owner_of_a_file_that_no_url_names_is_seen_by_others(
    engine: Engine, session: Session
) -> None:
    file = engine.url.database or ""
    unnamed = create_engine("sqlite://", creator=lambda: sqlite3.connect(file))

    with Owner(unnamed) as owner:
        assert owner_state(session, owner.name) is ALIVE
    unnamed.dispose()


@pytest.mark.only_on("sqlite")
def test_an_engine_that_opens_another_file_than_its_url_names_has_no_owners(
    engine: Engine, tmp_path: Path
) -> None:
    """The locks would be beside the one file, and looked for beside the other."""
    misnamed = create_engine(engine.url, creator=lambda: sqlite3.connect(tmp_path / "other.db"))

    with pytest.raises(UnsupportedDatabase, match="different servers or databases"):
        Owner(misnamed).open()
    misnamed.dispose()


@pytest.mark.only_on("sqlite")
def test_a_database_in_memory_has_owners_of_its_own() -> None:
    here, there = create_engine("sqlite://"), create_engine("sqlite://")

    with Owner(here) as owner, Session(here) as own, Session(there) as other:
        name = owner.name
        assert (owner_state(own, name), owner_state(other, name)) == (ALIVE, UNKNOWN)
        owner.close()
        assert (owner_state(own, name), owner_state(other, name)) == (DEAD, UNKNOWN)

    here.dispose()
    there.dispose()


@pytest.mark.only_on("sqlite")
def test_a_file_is_known_by_each_of_its_paths(engine: Engine, owner: Owner, tmp_path: Path) -> None:
    assert engine.url.database is not None
    link = tmp_path / "link.db"
    link.symlink_to(engine.url.database)
    linked = create_engine(f"sqlite:///{link}")

    with Session(linked) as session:
        assert owner_state(session, owner.name) is ALIVE
    linked.dispose()


@pytest.mark.only_on("sqlite")
def test_a_copy_of_a_file_is_another_database(engine: Engine, owner: Owner, tmp_path: Path) -> None:
    assert engine.url.database is not None
    shutil.copy(engine.url.database, tmp_path / "copy.db")
    copied = create_engine(f"sqlite:///{tmp_path / 'copy.db'}")

    with Session(copied) as session:
        assert owner_state(session, owner.name) is UNKNOWN
    copied.dispose()


# Connections as owners


@contextmanager
def connected(engine: Engine) -> Iterator[tuple[Connection, Session]]:
    """Open a session on one connection, which is closed at the end, not pooled."""
    with engine.connect() as connection, Session(connection, expire_on_commit=False) as session:
        yield connection, session
        connection.detach()


def wait_until(session: Session, name: str, wanted: OwnerState) -> None:
    """Ask until the server has noticed that a connection is closed: it takes a moment."""
    for _ in range(500):
        state = owner_state(session, name)
        session.rollback()
        if state is wanted:
            return
        signal.sigtimedwait([], 0.01)
    assert state is wanted


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


def test_an_owner_is_no_connection(owner: Owner) -> None:
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
    """PostgreSQL keeps its list as it was when the transaction first asked."""
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
def test_a_connection_whose_number_is_anothers_by_now_is_dead(
    engine: Engine, session: Session
) -> None:
    with connected(engine) as (_, bound):
        before, started = connection_owner(bound).rsplit(".", 1)

        assert owner_state(session, f"{before}.{int(started) - 1}") is DEAD


@pytest.mark.only_on(*SERVERS)
def test_nothing_is_known_of_a_connection_to_another_database(
    session: Session, fresh_database: URL
) -> None:
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
def test_a_database_without_a_list_of_connections_has_no_such_owners(engine: Engine) -> None:
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
        pytest.raises(UnsupportedDatabase, match="a pooler stands in between"),
    ):
        connection_owner(bound)


@pytest.mark.only_on("postgresql")
def test_a_clock_that_was_set_back_makes_connections_no_owners(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would look older than the server, and so dead."""
    later = text(postgresql_database._PROCESSES.text.replace("pg_postmaster_start_time()", "now()"))
    monkeypatch.setattr(
        postgresql_database, "_PROCESSES", later.bindparams(bindparam("pids", expanding=True))
    )

    with (
        connected(engine) as (_, bound),
        pytest.raises(UnsupportedDatabase, match=r"use Owner\(engine\)"),
    ):
        connection_owner(bound)


# Restricted users


@pytest.fixture
def restricted(engine: Engine) -> Iterator[Engine]:
    """An engine of a user who may read and write the tables, and nothing else."""
    with restricted_user(engine) as theirs:
        yield theirs


@contextmanager
def restricted_user(engine: Engine) -> Iterator[Engine]:
    user = f"restricted_{secrets.token_hex(4)}"
    try:
        with administering(engine) as run:
            for statement in made_and_granted(engine, user):
                run(statement)
    except DBAPIError as error:
        if is_denied(error):
            pytest.skip("the URL given may not create users")
        raise
    theirs = make_engine(engine.url.set(username=user, password="secret"), poolclass=NullPool)
    try:
        yield theirs
    finally:
        theirs.dispose()
        with administering(engine) as run:
            for statement in dropped(engine, user):
                run(statement)


@contextmanager
def administering(engine: Engine) -> Iterator[Callable[[str], Any]]:
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        yield connection.exec_driver_sql


def made_and_granted(engine: Engine, user: str) -> list[str]:
    if engine.dialect.name == "postgresql":
        return [
            f"CREATE ROLE {user} LOGIN PASSWORD 'secret'",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {user}",
        ]
    return [
        f"CREATE USER {user} IDENTIFIED BY 'secret'",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON {engine.url.database}.* TO {user}",
    ]


def dropped(engine: Engine, user: str) -> list[str]:
    owned = [f"DROP OWNED BY {user}"] if engine.dialect.name == "postgresql" else []
    return [*owned, f"DROP {'ROLE' if owned else 'USER'} {user}"]


@pytest.mark.only_on(*SERVERS)
def test_a_restricted_user_sees_who_is_alive_and_who_is_dead(
    engine: Engine, restricted: Engine
) -> None:
    with Session(restricted) as theirs:
        with Owner(engine) as owner:
            name = owner.name
            alive = owner_state(theirs, name)

        assert (alive, owner_state(theirs, name)) == (ALIVE, DEAD)


@pytest.mark.only_on(*SERVERS)
def test_a_restricted_user_has_owners_that_everybody_sees(
    engine: Engine, session: Session, restricted: Engine
) -> None:
    add_emails(session, "a")
    with Owner(restricted) as owner, Session(restricted) as theirs:
        name = owner.name
        alive = owner_state(session, name)
        (email,) = claim(theirs, Email, owner=owner)
        claimed_as = email.owner
        theirs.rollback()

    assert claimed_as == name
    assert (alive, owner_state(session, name)) == (ALIVE, DEAD)


@pytest.mark.only_on(*SERVERS)
def test_a_restricted_user_knows_nothing_of_anothers_connection(
    engine: Engine, restricted: Engine
) -> None:
    with connected(engine) as (_, bound), Session(restricted) as theirs:
        name = connection_owner(bound)

        assert owner_state(theirs, name) is UNKNOWN


@pytest.mark.only_on("mysql", "mariadb")
def test_a_restricted_user_never_learns_that_anothers_connection_is_gone(
    engine: Engine, session: Session, restricted: Engine
) -> None:
    with connected(engine) as (_, bound):
        name = connection_owner(bound)
    wait_until(session, name, DEAD)

    with Session(restricted) as theirs:
        assert owner_state(theirs, name) is UNKNOWN


@pytest.mark.only_on(*SERVERS)
def test_a_restricted_user_sees_connections_of_its_own(restricted: Engine) -> None:
    with connected(restricted) as (_, bound), Session(restricted) as theirs:
        assert owner_state(theirs, connection_owner(bound)) is ALIVE


@pytest.mark.only_on("mysql", "mariadb")
def test_a_privilege_that_a_connection_does_not_have_yet_is_not_counted_on(
    engine: Engine, restricted: Engine
) -> None:
    """The servers show it in the grants at once, and honour it from the next connection on."""
    with connected(engine) as (_, bound), Session(restricted) as theirs:
        name = connection_owner(bound)
        theirs.connection()
        with administering(engine) as run:
            run(f"GRANT PROCESS ON *.* TO {restricted.url.username}")

        before = owner_state(theirs, name)
        theirs.close()

        assert (before, owner_state(theirs, name)) == (UNKNOWN, ALIVE)


@pytest.mark.only_on("postgresql")
def test_the_same_server_is_known_to_users_who_may_not_ask_for_its_identifier(
    fresh_database: URL,
) -> None:
    """All of them then go by the start of the server."""
    engine = create_engine(fresh_database)
    Base.metadata.create_all(engine)
    with administering(engine) as run, restricted_user(engine) as theirs:
        run("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        with Owner(theirs) as owner, Session(theirs) as own, Session(engine) as superuser:
            name = owner.name
            seen = (owner_state(own, name), owner_state(superuser, name))
            owner.close()

            assert (owner_state(own, name), owner_state(superuser, name)) == (DEAD, UNKNOWN)
            assert seen == (ALIVE, UNKNOWN)
    engine.dispose()


@pytest.mark.only_on("postgresql")
def test_a_user_who_may_not_see_locks_knows_nothing_and_has_no_owners(
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


@pytest.mark.only_on("postgresql")
def test_a_connection_that_hides_itself_is_no_owner(engine: Engine, restricted: Engine) -> None:
    """After SET ROLE it does not see when it was made."""
    with connected(engine) as (connection, bound):
        connection.exec_driver_sql(f"SET ROLE {restricted.url.username}")

        with pytest.raises(UnsupportedDatabase, match=r"use Owner\(engine\)"):
            connection_owner(bound)
