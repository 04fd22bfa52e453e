"""What a claim and its finish refuse: the error says the way out, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, select
from sqlalchemy.orm import Session, aliased

from sa_jobqueue import (
    ArgumentError,
    JobQueue,
    NotClaimed,
    UnsupportedDatabase,
    cancel,
    cancel_claimed,
    claim,
    complete,
    enqueue,
    fail,
    fence_of,
    release,
    renew,
    retry,
    with_fence,
)
from tests.models import Account, Dog, Email, Letter, Message, Task, add_emails
from tests.support import ALL_STRATEGIES, SERVERS, STRATEGIES, Sessions

Call = Callable[[Session], object]


def claiming(**options: Any) -> Call:
    return lambda session: claim(session, Email, **{"owner": "w", **options})


#: What is done with a session, and the words of the error.
CALLS: list[tuple[Call, str]] = [
    *((claiming(limit=limit), "at least 1") for limit in (0, -1, True, 1.5, None)),
    *((claiming(owner=owner), "owner") for owner in ("", "x" * 65, "a~b", 1.5)),
    (claiming(owner=None), "owner= is needed"),
    (claiming(order_by="recipient"), r"Email\.id\.desc"),
    (claiming(strategy="skip-locked"), "skip_locked"),
    (lambda session: claim(session, aliased(Email), owner="w"), "mapped class"),
    (lambda session: claim(session, Letter, Letter.account_id == Account.id, owner="w"), "has"),
    (
        lambda session: with_fence(
            Message(id=session.scalar(select(Email.id)), sequence=1),
            fence_of(claim(session, Email, owner="w")[0]),
        ),
        "not the row",
    ),
    (lambda session: complete(session, claim(session, Dog, owner="w"), delete=True), "tables"),
    (lambda session: enqueue(session, Task, [{"name": "a", "prioritty": 3}]), "prioritty"),
    *(
        (
            lambda session, schema=schema: claim(
                Session(session.bind.execution_options(schema_translate_map={None: schema})),
                Email,
                owner="w",
            ),
            "rename the schema",
        )
        for schema in ("It's two", "a\\b")
    ),
]


@pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.parametrize(("call", "words"), CALLS)
def test_a_call_that_cannot_be_meant_is_refused(session: Session, call: Call, words: str) -> None:
    session.add(Dog(trick="roll"))
    add_emails(session, "a")

    with pytest.raises(ArgumentError, match=words):
        call(session)


def test_a_strategy_that_cannot_run_here_is_refused(session: Session, db_alias: str) -> None:
    here = {*STRATEGIES[db_alias], *(["advisory"] if db_alias == "postgresql" else [])}
    for name in {*ALL_STRATEGIES, "advisory"} - here:
        with pytest.raises(UnsupportedDatabase, match=f"{name}.*use strategy='auto'"):
            claim(session, Email, owner="w", strategy=name)


@pytest.mark.only_on(*SERVERS)
def test_a_held_claim_needs_a_transaction_of_its_session(
    engine: Engine, session: Session, new_session: Sessions
) -> None:
    add_emails(session, "a")
    queue = JobQueue(Email, strategy="held")
    claimed = queue.claim(session)
    session.commit()

    for verb in (complete, fail, release, cancel_claimed):
        with pytest.raises(NotClaimed, match="one transaction"):
            verb(session, claimed)
    with pytest.raises(UnsupportedDatabase, match="AUTOCOMMIT"):
        queue.claim(new_session(engine.execution_options(isolation_level="AUTOCOMMIT")))
    with (
        engine.connect() as connection,
        connection.begin_nested(),
        pytest.raises(ArgumentError, match="needs a Session"),
    ):
        queue.claim_rows(connection, limit=2)


@pytest.mark.by_turns("sqlite", "postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("verb", [complete, fail, release, renew, cancel, retry])
def test_entities_need_a_session_and_a_connection_writes_nothing(
    engine: Engine, session: Session, verb: Any
) -> None:
    emails = add_emails(session, "a")
    jobs: Any = emails if verb in (cancel, retry) else claim(session, Email, owner="w")
    session.commit()
    before = session.scalars(select(Email.status)).all()
    session.rollback()

    with engine.connect() as connection:
        with pytest.raises(ArgumentError, match="need a Session"):
            verb(connection, jobs)
        with pytest.raises(ArgumentError, match="need a Session"):
            claim(connection, Email, owner="w")  # type: ignore[arg-type]  # the mistake under test
        connection.commit()

    assert session.scalars(select(Email.status)).all() == before
