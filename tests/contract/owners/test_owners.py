"""Owners have names, claim under them, and are alive until they are closed."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, String, cast, literal, select, update
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ArgumentError,
    LockLost,
    LockNotHeld,
    Owner,
    claim,
    claimed_by,
    complete,
    connection_owner,
    enqueue,
    owner_state,
    reap,
)
from tests.contract.owners.conftest import ALIVE, DEAD, UNKNOWN, cut, state_of
from tests.models import Email, add_emails, recipients
from tests.support import SERVERS, statements_seen

# Names


def test_a_name_says_the_host_the_database_and_something_random(
    engine: Engine, owner: Owner
) -> None:
    label, identity, random = owner.name.split("~")

    assert label == socket.gethostname()[:34]
    assert re.fullmatch("[0-9a-f]{16}", identity)
    assert re.fullmatch("[0-9a-f]{12}", random)
    with Owner(engine) as other_owner, statements_seen(engine) as seen:
        assert owner.name != other_owner.name
        assert owner.name[:-12] == other_owner.name[:-12]
    assert not [statement for statement in without_pings(seen) if "SELECT" in statement]


@pytest.mark.parametrize("name", ["mailer 1", "n" * 34, None])
def test_the_callers_name_or_that_of_the_host_comes_first_and_fits_the_column(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "h~" * 40)

    with Owner(engine, name) as owner:
        assert owner.name.startswith("h-h-" if name is None else f"{name}~")
        assert len(owner.name) <= 64


BY_ENGINE = r"Or use Owner\(engine\)"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s, o: Owner(s.bind, "n" * 35), "1 to 34 .* has 35: .*shorten it"),
        (lambda s, o: Owner(s.bind, ""), "1 to 34 characters.* has 0"),
        (lambda s, o: Owner(s.bind, "a~b"), "'~' is reserved in owners: 'a~b'; use"),
        (lambda s, o: Owner(s.bind, 7), "is a str, not int: 7"),  # type: ignore[arg-type]  # no name
        (lambda s, o: Owner(s), "needs an Engine or an AsyncEngine, not <sql"),
        (lambda s, o: o.open(), "open already; make another Owner"),
        (lambda s, o: claim(s, Email, owner=o.name), "give the Owner itself"),
        (lambda s, o: claim(s, Email, owner=Owner(s.bind)), "not open"),
        (lambda s, o: connection_owner(s), BY_ENGINE),
        (lambda s, o: connection_owner(Session()), BY_ENGINE),
    ],
)
def test_what_is_no_open_owner_is_refused_with_the_way_out(
    session: Session, owner: Owner, call: Callable[..., Any], words: str
) -> None:
    with pytest.raises((ArgumentError, LockNotHeld), match=words):
        call(session, owner)


def test_an_owner_that_was_closed_and_opened_again_has_another_name(engine: Engine) -> None:
    owner = Owner(engine)
    owner.open()
    first = owner.name
    owner.close()
    owner.close()

    with pytest.raises(LockNotHeld, match=r"not open; use: with Owner\(engine\) as owner:"):
        _ = owner.name
    assert repr(owner).endswith("not open>")
    with owner:
        assert owner.name != first


# Claims


def test_the_claims_of_an_owner_are_found_by_it_and_by_its_name(
    session: Session, other: Session, owner: Owner
) -> None:
    add_emails(session, "a", "b")
    (email,) = claim(session, Email, owner=owner)
    session.commit()

    assert email.owner == owner.name
    assert recipients(claimed_by(other, Email, owner)) == ["a"]
    assert recipients(claimed_by(other, Email, owner.name)) == ["a"]
    complete(session, email)


# States of owners


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_an_owner_is_alive_until_it_is_closed_also_to_older_transactions(
    engine: Engine, db_alias: str, level: Any
) -> None:
    bind = engine if db_alias == "sqlite" else engine.execution_options(isolation_level=level)
    with Session(bind) as session:
        session.scalars(select(Email)).all()
        session.commit() if db_alias == "sqlite" else None

        with Owner(engine) as owner:
            name = owner.name
            alive = owner_state(session, name)

        # To ask does not take the lock.
        assert (alive, *(owner_state(session, name) for _ in range(3))) == (ALIVE, *[DEAD] * 3)


def test_plain_names_are_unknown_without_asking_the_server(
    engine: Engine, session: Session
) -> None:
    session.connection()

    with statements_seen(engine) as seen:
        states = {owner_state(session, name) for name in ("mailer-1", "host-12-ab", "1", "")}

    assert (states, seen) == ({UNKNOWN}, [])


MALFORMED: dict[str, Callable[[str, str], str]] = {
    "no label": lambda identity, random: f"~{identity}~{random}",
    "no random part": lambda identity, random: f"host~{identity}~",
    "two parts": lambda identity, random: f"host~{identity}",
    "four parts": lambda identity, random: f"a~b~{identity}~{random}",
    "short identity": lambda identity, random: f"host~{identity[1:]}~{random}",
    "another server": lambda identity, random: f"host~{identity[::-1]}~{random}",
    "long random part": lambda identity, random: f"host~{identity}~{random}0",
    "upper case": lambda identity, random: f"host~{identity}~{'A' * 12}",
    "line break": lambda identity, random: f"host~{identity}~{random}\n",
    "no connection": lambda identity, random: f"host~{identity}~@",
    "no start": lambda identity, random: f"host~{identity}~@12",
    "negative": lambda identity, random: f"host~{identity}~@-1.5",
    "too long": lambda identity, random: f"host~{identity}~@{'9' * 19}.1",
    "other digits": lambda identity, random: f"host~{identity}~@\u0661.\u0661",
}


def test_a_malformed_name_is_unknown(session: Session, owner: Owner) -> None:
    _, identity, random = owner.name.split("~")

    for how, name in MALFORMED.items():
        assert owner_state(session, name(identity, random)) is UNKNOWN, how


def test_many_owners_are_looked_up_in_few_statements(engine: Engine, session: Session) -> None:
    enqueue(session, Email, [{"recipient": "a"}] * 1_002)
    session.commit()
    with Owner(engine, "mailer") as alive:
        living, dead, plain = claim(session, Email, owner=alive, limit=1_002)[:3]
        # Their random parts are numbers: all of them but one are of the dead.
        number = cast(Email.id + 10**11, String)
        name = literal(alive.name[:-12]) + number
        session.execute(update(Email).where(Email.id != living.id).values(owner=name))
        session.execute(update(Email).where(Email.id == plain.id).values(owner="plain"))
        session.commit()

        with statements_seen(engine) as seen:
            reaped = reap(session, Email, limit=2_000)

        assert len(reaped.by_owner) == 1_000
        assert not {alive.name, "plain"} & set(reaped.by_owner)
        assert dead.status == "unclaimed"
    assert len(without_pings(seen)) <= 30


def without_pings(seen: list[str]) -> list[str]:
    """Leave out the statements that keep locks alive on their own connections meanwhile."""
    pings = ("SELECT CASE WHEN version()", "SELECT CONNECTION_ID()")
    return [statement for statement in seen if not statement.startswith(pings)]


@pytest.mark.only_on("mysql", "mariadb")
def test_asking_for_a_state_leaves_the_transaction_for_the_next_claim_to_begin(
    engine: Engine, session: Session, owner: Owner
) -> None:
    """Else it would be REPEATABLE READ, whose claims lock gaps."""
    add_emails(session, "a")
    owner_state(session, owner.name)

    with statements_seen(engine) as seen:
        claim(session, Email, owner=owner)

    assert any("READ COMMITTED" in statement for statement in seen)


# Lost locks


def ask_while_it_is(before: str, owner: Owner) -> None:
    """Ask an owner for its name until it knows of the lost connection, which takes a moment."""
    while owner.name == before:
        pass


@pytest.mark.only_on(*SERVERS)
def test_an_owner_that_lost_its_lock_raises_once_and_goes_on_under_another_name(
    engine: Engine,
) -> None:
    with Owner(engine, "mailer") as owner:
        before = owner.name
        cut(engine, before)

        with pytest.raises(LockLost, match=f"'{before}' has lost its lock.*and claim again"):
            ask_while_it_is(before, owner)
        after = owner.name

        assert after.startswith("mailer~")
        assert owner.name == after != before
        assert state_of(engine, after) is ALIVE
        with Session(engine, expire_on_commit=False) as session:
            add_emails(session, "a")
            (email,) = claim(session, Email, owner=owner)
            assert email.owner == after
        cut(engine, after)  # it is closed quietly
