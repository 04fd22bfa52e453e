"""What versions, listeners, hooks and soft deletes of an application see of the verbs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import URL, Engine, FetchedValue, String, event, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, ORMExecuteState, Session, mapped_column

from sa_jobqueue import (
    JobMixin,
    LockLost,
    RetryMixin,
    claim,
    complete,
    count_by_status,
    enqueue,
    fail,
    named_lock,
    position,
    stats,
)
from tests.models import Email, add_emails
from tests.support import (
    SERVERS,
    cut_connections,
    heard,
    make_engine,
    only_seeing,
    translating_errors,
    until,
    with_empty_tables,
)


class Base(DeclarativeBase):
    pass


class Note(JobMixin, RetryMixin, Base):
    """A queue whose versions the mapper counts."""

    __tablename__ = "versioned_note"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str | None] = mapped_column(String(20))
    deleted: Mapped[bool] = mapped_column(default=False)
    version: Mapped[int] = mapped_column()
    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - as users write it


@pytest.fixture
def notes(engine: Engine, session: Session) -> None:
    with_empty_tables(engine, Base.metadata)
    enqueue(session, Note, [{"text": "new"}])
    session.commit()


def stored(session: Session) -> tuple[str, int]:
    """Return status and version of the only note."""
    status, version = session.execute(select(Note.status, Note.version)).one()
    return status, version


@pytest.mark.usefixtures("notes")
def test_versions_and_mapper_events_tell_of_a_handlers_change_and_neither_of_claim_nor_finish(
    session: Session, strategy: str
) -> None:
    audited: list[tuple[str, Any]] = []

    def audit(mapper: Any, connection: Any, note: Note) -> None:
        audited.append((note.text or "", note.status))

    with heard(Note, "before_update", audit):
        (note,) = claim(session, Note, owner="w", strategy=strategy)
        assert (note.version, audited) == (1, [])
        note.text = "handled"
        complete(session, note)
        session.commit()

    assert audited == [("handled", "unclaimed" if strategy == "held" else "claimed")]
    assert stored(session) == ("done", 2)
    note.text = "changed once more"
    session.commit()
    assert stored(session) == ("done", 3)


@pytest.mark.usefixtures("notes")
def test_a_change_by_somebody_else_is_no_obstacle_to_a_finish(
    session: Session, other: Session
) -> None:
    (note,) = claim(session, Note, owner="w")
    session.commit()
    other.scalars(select(Note)).one().text = "theirs"
    other.commit()

    complete(session, note)
    session.commit()

    assert stored(session) == ("done", 2)


class Row(DeclarativeBase):
    pass


class Page(JobMixin, RetryMixin, Row):
    """A queue whose versions PostgreSQL counts, in each row's xmin."""

    __tablename__ = "versioned_page"
    id: Mapped[int] = mapped_column(primary_key=True)
    text: Mapped[str | None] = mapped_column(String(20))
    xmin = mapped_column("xmin", String, system=True, server_default=FetchedValue())
    __mapper_args__ = {"version_id_col": xmin, "version_id_generator": False}  # noqa: RUF012 - as users write it


@pytest.mark.only_on("postgresql")
def test_a_job_whose_version_is_the_servers_changes_after_a_claim_and_after_one_that_was_undone(
    fresh_database: URL, strategy: str
) -> None:
    engine = make_engine(fresh_database)
    Row.metadata.create_all(engine)
    with Session(engine, expire_on_commit=False) as session:
        page = Page()
        session.add(page)
        session.commit()
        with session.begin_nested() as savepoint:
            assert list(claim(session, Page, owner="w", strategy=strategy)) == [page]
            savepoint.rollback()
        page.text = "changed"
        session.commit()
        assert page.status == "unclaimed"

        assert claim(session, Page, owner="w", strategy=strategy)
        if strategy != "held":
            session.commit()
        page.text = "handled"
        complete(session, page)
        session.commit()
        page.text = "changed once more"
        session.commit()

        assert (page.status, page.text) == ("done", "changed once more")
    engine.dispose()


@pytest.mark.parametrize(("finish", "left"), [(complete, "done"), (fail, "unclaimed")])
@pytest.mark.usefixtures("notes")
def test_a_soft_deleted_job_is_not_claimed_and_finished_if_it_was_deleted_after_its_claim(
    session: Session, other: Session, finish: Any, left: str
) -> None:
    session.add(Note(text="gone", deleted=True, status="claimed"))
    session.add(Note(text="gone", deleted=True))
    session.commit()
    only_seeing(other, Note, Note.deleted.is_(False))

    claimed = claim(other, Note, owner="w", limit=9)
    assert [note.text for note in claimed] == ["new"]
    other.commit()
    session.execute(update(Note).values(deleted=True))
    session.commit()
    finish(other, claimed)
    other.commit()

    assert session.scalars(select(Note.status).where(Note.text == "new")).all() == [left]


def test_hooks_see_each_verb_that_writes_and_none_that_reads(session: Session) -> None:
    add_emails(session, "a", "b")
    seen: list[str] = []

    @event.listens_for(session, "do_orm_execute")
    def execute(state: ORMExecuteState) -> None:
        if state.is_orm_statement and not state.is_select and state.bind_mapper is not None:
            seen.append(f"write to {state.bind_mapper.class_.__name__}")

    event.listen(session, "after_bulk_update", lambda context: seen.append("after_bulk_update"))
    complete(session, claim(session, Email, owner="w"))
    assert seen == ["write to Email", "after_bulk_update"] * 2

    enqueue(session, Email, [{"recipient": "a@example.org"}])
    assert seen[4:] == ["write to Email"]  # its own INSERT
    count_by_status(session, Email)
    stats(session, Email)
    position(session, session.scalars(select(Email)).first())
    assert len(seen) == 5


def test_a_hook_that_refuses_writes_keeps_the_rows_as_they_are(session: Session) -> None:
    add_emails(session, "a")

    def refuse(state: ORMExecuteState) -> None:
        if state.is_update:
            raise PermissionError("no writes here")

    event.listen(session, "do_orm_execute", refuse)

    with pytest.raises(PermissionError):
        claim(session, Email, owner="w")
    assert count_by_status(session, Email)["unclaimed"] == 1


@pytest.fixture
def translated(db_url: URL) -> Iterator[Engine]:
    """An engine whose errors are the application's own; it waits a moment for locks."""
    engine = make_engine(db_url, tls=True)
    with translating_errors(engine):
        yield engine
    engine.dispose()


@pytest.mark.only_on("postgresql")
def test_a_lock_that_is_not_free_in_time_is_not_taken(translated: Engine) -> None:
    with named_lock(translated, "report"):
        second = named_lock(translated, "report", timeout=timedelta(milliseconds=100))

        assert not second.acquire()


@pytest.mark.only_on(*SERVERS)
def test_a_lost_lock_is_a_lost_lock(fresh_database: URL, db_alias: str) -> None:
    engine = make_engine(fresh_database, tls=True)
    with translating_errors(engine):
        lock = named_lock(engine, "report")
        lock.acquire()
        cut_connections(fresh_database, db_alias)

        until(lambda: lock.lost)
        with pytest.raises(LockLost):
            lock.check()
    engine.dispose()
