"""Hooks of the session see that a verb writes, and the database sees no more statements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import ORMExecuteState, Session

from sa_jobqueue import claim, complete, count_by_status, enqueue, position, stats
from tests.models import Email, add_emails
from tests.support import statements_seen


def writes_seen(session: Session) -> list[str]:
    """Collect the names of the events that told of a write to emails."""
    seen: list[str] = []

    def execute(state: ORMExecuteState) -> None:
        if state.is_orm_statement and not state.is_select and state.bind_mapper is not None:
            assert state.bind_mapper.class_ is Email
            seen.append("do_orm_execute")

    event.listen(session, "do_orm_execute", execute)
    event.listen(session, "after_bulk_update", lambda context: seen.append("after_bulk_update"))
    return seen


def test_hooks_see_each_verb_that_writes_and_none_that_reads(session: Session) -> None:
    add_emails(session, "a", "b")
    seen = writes_seen(session)
    both = ["do_orm_execute", "after_bulk_update"]

    claimed = claim(session, Email, owner="w")
    assert seen == both

    complete(session, claimed)
    assert seen == both * 2

    enqueue(session, Email, [{"recipient": "a@example.org"}])
    assert seen == [*both * 2, "do_orm_execute"]  # its own INSERT

    seen.clear()
    count_by_status(session, Email)
    stats(session, Email)
    position(session, claimed[0])
    assert seen == []


def test_a_listener_of_bulk_updates_alone_sees_the_write_and_costs_no_statement(
    new_session: Callable[..., Session], engine: Engine
) -> None:
    plain, heard = new_session(), new_session()
    add_emails(plain, "a", "b", "c")
    plain.commit()
    claim(plain, Email, owner="first", limit=1)  # asks the server what is asked once
    plain.commit()
    seen: list[Any] = []
    event.listen(heard, "after_bulk_update", lambda context: seen.append(context.session))

    counts = []
    for session in (plain, heard):
        with statements_seen(engine) as statements:
            complete(session, claim(session, Email, owner="w", limit=1))
            session.commit()
        counts.append(len(statements))

    assert seen == [heard, heard]
    assert counts[0] == counts[1]


def test_a_hook_that_refuses_writes_keeps_the_rows_as_they_are(session: Session) -> None:
    add_emails(session, "a")

    def refuse(state: ORMExecuteState) -> None:
        if state.is_update:
            raise PermissionError("no writes here")

    event.listen(session, "do_orm_execute", refuse)

    with pytest.raises(PermissionError):
        claim(session, Email, owner="w")
    assert count_by_status(session, Email)["unclaimed"] == 1
