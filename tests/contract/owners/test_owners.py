"""Owners have names, claim under them, and are alive until they are closed."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, select
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_jobqueue import (
    ArgumentError,
    LockNotHeld,
    Owner,
    OwnerState,
    claim,
    claimed_by,
    complete,
    owner_state,
)
from sa_jobqueue.dialects import database_of
from sa_jobqueue.owners.alive import is_connection_owner, owner_states
from tests.models import Email, add_emails, recipients
from tests.support import SERVERS, statements_seen

ALIVE, DEAD, UNKNOWN = OwnerState.ALIVE, OwnerState.DEAD, OwnerState.UNKNOWN


# Names


def test_a_name_says_the_host_the_database_and_something_random(owner: Owner) -> None:
    label, identity, random = owner.name.split("~")

    assert label == socket.gethostname()[:34]
    assert re.fullmatch("[0-9a-f]{16}", identity)
    assert re.fullmatch("[0-9a-f]{12}", random)


def test_the_names_of_two_owners_differ_only_in_their_random_parts(
    engine: Engine, owner: Owner
) -> None:
    with Owner(engine) as other_owner:
        assert owner.name != other_owner.name
        assert owner.name[:-12] == other_owner.name[:-12]


def test_the_callers_name_comes_first_in_an_owners_name(engine: Engine) -> None:
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
def test_an_invalid_name_is_refused(engine: Engine, name: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Owner(engine, name)


def test_an_owner_needs_an_engine(session: Session) -> None:
    with pytest.raises(ArgumentError, match="needs an Engine or an AsyncEngine, not <sql"):
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


def test_asking_for_the_state_of_an_owner_does_not_take_its_lock(
    session: Session, engine: Engine
) -> None:
    with Owner(engine) as owner:
        name = owner.name

    states = [owner_state(session, name) for _ in range(3)]

    assert states == [DEAD] * 3


def test_plain_names_are_unknown_without_asking_the_server(
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
def test_a_malformed_name_is_unknown(session: Session, owner: Owner, how: str) -> None:
    _, identity, random = owner.name.split("~")

    name = MALFORMED[how](identity, random)

    assert owner_state(session, name) is UNKNOWN
    assert not is_connection_owner(name)


def test_an_owner_of_another_database_is_unknown(session: Session, fresh_database: URL) -> None:
    elsewhere = create_engine(fresh_database)
    with Owner(elsewhere) as owner:
        name = owner.name
        alive = owner_state(session, name)
        session.rollback()
    dead = owner_state(session, name)
    elsewhere.dispose()

    assert (alive, dead) == (UNKNOWN, UNKNOWN)


def test_an_owner_of_another_server_is_unknown(session: Session, owner: Owner) -> None:
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
    """Leave out the statements that keep locks alive on their own connections meanwhile."""
    pings = ("SELECT pg_backend_pid()", "SELECT CONNECTION_ID()")
    return [statement for statement in seen if statement not in pings]


@pytest.mark.only_on("mysql", "mariadb")
def test_asking_for_a_state_leaves_the_transaction_for_the_next_claim_to_begin(
    session: Session, owner: Owner
) -> None:
    owner_state(session, owner.name)

    connection = session.connection()

    assert database_of(connection).begin(connection), "it was begun, as REPEATABLE READ"
