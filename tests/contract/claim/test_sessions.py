"""A claim goes by the session: hooks, routing, scopes, schemas, plain rows."""

from __future__ import annotations

import pytest
from sqlalchemy import Delete, Engine, Update, create_engine, select, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from sa_jobqueue import JobQueue, claim, complete, enqueue
from tests.models import Email, add_emails, recipients
from tests.support import Sessions, begin_deferred, only_seeing


def test_criteria_of_do_orm_execute_hooks_hold_in_claims(
    new_session: Sessions, strategy: str
) -> None:
    session = new_session()
    add_emails(session, *["tenant1"] * 3, *["tenant2"] * 3)

    only_seeing(session, Email, Email.recipient == "tenant2")
    emails = claim(session, Email, owner="w", limit=2, strategy=strategy)
    rows = JobQueue(Email, strategy=strategy).claim_rows(session, owner="w", limit=1)

    assert recipients(emails) == ["tenant2"] * 2
    assert recipients(rows) == ["tenant2"]


def test_a_routing_session_claims_on_the_writer(
    engine: Engine, new_session: Sessions, strategy: str
) -> None:
    replica = create_engine("sqlite://")  # without a single table

    class RoutingSession(Session):
        def get_bind(self, mapper=None, clause=None):  # type: ignore[no-untyped-def,override]
            if self._flushing or isinstance(clause, (Update, Delete)):
                return engine
            return replica

    with RoutingSession(expire_on_commit=False) as session:
        enqueue(session, Email, [{"recipient": "a"}, {"recipient": "b"}])
        session.commit()
        claimed = claim(session, Email, owner="w", limit=2, strategy=strategy)
        if strategy != "held":
            session.commit()
        complete(session, claimed)
        session.commit()
        assert session.get_bind(None) is replica  # type: ignore[no-untyped-call]  # left as it was

    assert recipients(claimed) == ["a", "b"]
    assert new_session().scalars(select(Email.status)).all() == ["done", "done"]
    replica.dispose()


@pytest.mark.strategies("auto")
def test_a_scoped_session_and_one_joined_to_an_outer_transaction_work(
    engine: Engine, strategy: str
) -> None:
    with engine.connect() as connection, connection.begin() as outer:
        begin_deferred(connection)
        factory = sessionmaker(
            connection, join_transaction_mode="create_savepoint", expire_on_commit=False
        )
        scoped = scoped_session(factory)
        add_emails(scoped(), "a", "b")

        claimed = claim(scoped, Email, owner="w", limit=5, strategy=strategy)
        complete(scoped, claimed)
        scoped.commit()

        assert recipients(claimed) == ["a", "b"]
        assert scoped.scalars(select(Email.status)).all() == ["done", "done"]
        scoped.remove()
        outer.rollback()
    with Session(engine) as session:
        assert session.scalars(select(Email)).all() == []


def test_schema_translate_map_is_followed(
    engine: Engine, new_session: Sessions, strategy: str, db_alias: str
) -> None:
    schema = "main" if db_alias == "sqlite" else engine.url.database
    if db_alias == "postgresql":
        schema = "elsewhere"
        with engine.begin() as connection:
            connection.execute(text("CREATE SCHEMA IF NOT EXISTS elsewhere"))
    translated = engine.execution_options(schema_translate_map={None: schema})
    Email.metadata.tables["email"].create(translated, checkfirst=True)
    session = new_session(translated)
    add_emails(session, "a")

    claimed = claim(session, Email, owner="w", strategy=strategy)
    complete(session, claimed, delete=True)
    session.commit()

    assert recipients(claimed) == ["a"]


@pytest.mark.strategies("auto")
def test_rows_are_claimed_and_finished_with_a_connection(
    engine: Engine, session: Session, strategy: str
) -> None:
    add_emails(session, *"abcd")
    queue = JobQueue(Email, strategy=strategy)
    with engine.connect() as connection:
        queue.claim_rows(connection, owner="w", limit=4)
        connection.rollback()  # as if it had not happened
        rows = queue.claim_rows(connection, owner="w", limit=4)
        connection.commit()
        queue.complete(connection, rows.fences[0])
        queue.release(connection, rows.fences[1])
        queue.fail(connection, rows.fences[2], error="broken")
        queue.renew(connection, rows.fences[3])
        connection.commit()

    assert recipients(rows) == ["a", "b", "c", "d"]
    statuses = session.scalars(select(Email.status).order_by(Email.id)).all()
    assert statuses == ["done", "unclaimed", "failed", "claimed"]
