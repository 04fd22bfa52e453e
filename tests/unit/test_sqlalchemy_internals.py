"""What we need of SQLAlchemy without a promise of its documentation: a change of it fails here."""

from __future__ import annotations

import pytest
from sqlalchemy import and_, event, select
from sqlalchemy.orm import ORMExecuteState, Session, aliased

from sa_jobqueue.model.mapping import mapping_of
from sa_jobqueue.sessions.hooks import announce_write, has_execute_hooks
from sa_jobqueue.strategies.parts.adapted import adapted
from tests.models import Email


def test_criteria_and_orders_are_said_of_an_alias() -> None:
    other = Email.__table__.alias("other")
    criterion = and_(Email.recipient == "a", Email.subject.is_(None))

    assert str(adapted(criterion, other)) == (
        "other.recipient = :recipient_1 AND other.subject IS NULL"
    )
    assert str(adapted(Email.__table__.c.id.desc(), other)) == "other.id DESC"
    assert str(criterion) == "email.recipient = :recipient_1 AND email.subject IS NULL"


def test_criteria_are_said_of_a_cte_and_other_tables_stay() -> None:
    found = select(Email.__table__).cte("found")
    unrelated = aliased(Email, name="unrelated")

    assert str(adapted(Email.recipient == unrelated.recipient, found)) == (
        "found.recipient = unrelated.recipient"
    )


@pytest.mark.parametrize("on_class", [True, False])
def test_the_hooks_of_a_session_and_of_its_class_are_seen(on_class: bool) -> None:
    class OwnSession(Session):
        pass

    session = OwnSession()
    seen: list[ORMExecuteState] = []

    assert not has_execute_hooks(session)
    event.listen(OwnSession if on_class else session, "do_orm_execute", seen.append)
    assert has_execute_hooks(session)

    announce_write(session, mapping_of(Email))  # without a connection: nothing is run
    assert [state.is_update for state in seen] == [True]
    assert not has_execute_hooks(Session())


def test_a_listener_of_bulk_updates_gets_the_session_and_no_rows() -> None:
    session = Session()
    seen: list[tuple[Session, int]] = []
    event.listen(
        session, "after_bulk_update", lambda ctx: seen.append((ctx.session, ctx.result.rowcount))
    )

    announce_write(session, mapping_of(Email))

    assert seen == [(session, 0)]
    assert not has_execute_hooks(session)
