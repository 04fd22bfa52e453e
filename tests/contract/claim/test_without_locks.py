"""Where row locks do not hold, or a trigger skips the mark: no job is given to two claimers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import URL, Engine, event, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, UnsupportedDatabase
from tests.models import Base, Email, add_emails
from tests.support import STRATEGIES, make_engine

#: The clauses that a server may parse and not obey.
CLAUSES = (
    " FOR NO KEY UPDATE OF email SKIP LOCKED",
    " FOR NO KEY UPDATE SKIP LOCKED",
    " FOR UPDATE OF email SKIP LOCKED",
    " FOR UPDATE SKIP LOCKED",
)

QUEUES: dict[str, JobQueue[Email]] = {
    **{
        name: JobQueue(Email, strategy=name)
        for name in ("skip_locked", "candidates", "compare_and_set", "update_then_select")
    },
    "serial_by": JobQueue(Email, serial_by=Email.recipient),
    "strict_order": JobQueue(Email, strict_order=True),
}


def runs_here(name: str, db_alias: str) -> bool:
    return name in STRATEGIES[db_alias] or name in ("serial_by", "strict_order")


@contextmanager
def no_locks(engine: Engine) -> Iterator[None]:
    """Cut the locking clauses out of all statements, as a server does that ignores them."""

    def cut(_: Any, __: Any, statement: str, parameters: Any, *___: Any) -> tuple[str, Any]:
        for clause in CLAUSES:
            statement = statement.replace(clause.replace(" ", "", 1), "").replace(clause, "")
        return statement, parameters

    event.listen(engine, "before_cursor_execute", cut, retval=True)
    yield
    event.remove(engine, "before_cursor_execute", cut)


@pytest.mark.only_on("postgresql", "mysql", "mariadb")
@pytest.mark.parametrize("name", QUEUES)
@pytest.mark.parametrize("rows", [False, True], ids=["entities", "rows"])
def test_two_claimers_never_keep_the_same_job_where_locks_do_not_hold(
    db_url: URL, session: Session, name: str, rows: bool, db_alias: str
) -> None:
    if not runs_here(name, db_alias):
        return
    queue = QUEUES[name]
    add_emails(session, *"abcde")
    engine = make_engine(db_url)
    # Without these, serial_by and strict_order would hold by locks of their own.
    held_by_others = name in ("serial_by", "strict_order")
    claimed: list[Any] = []
    errors: list[BaseException] = []

    def claim(owner: str) -> None:
        with Session(engine) as other:
            try:
                claimed.extend(_keys(queue, other, owner, rows=rows))
                other.commit()
            except UnsupportedDatabase as error:
                errors.append(error)

    with no_locks(engine), Session(engine) as first:
        claimed += _keys(queue, first, "a", rows=rows)
        second = threading.Thread(target=claim, args=("b",))
        second.start()
        second.join(1)
        first.commit()
        second.join()
    engine.dispose()

    assert len(claimed) == len(set(claimed)), "a job was claimed twice"
    assert all("lock" in str(error) for error in errors)
    assert claimed or errors or held_by_others


def _keys(queue: JobQueue[Email], session: Session, owner: str, *, rows: bool) -> list[int]:
    claim: Any = queue.claim_rows if rows else queue.claim
    return [job.id for job in claim(session, owner=owner, limit=5)]


SKIPPING = {
    "postgresql": (
        "CREATE FUNCTION keep_b() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF OLD.recipient = 'b' THEN RETURN NULL; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER keep_b BEFORE UPDATE ON email FOR EACH ROW EXECUTE FUNCTION keep_b()",
    ),
    "sqlite": (
        "CREATE TRIGGER keep_b BEFORE UPDATE ON email WHEN OLD.recipient = 'b' "
        "BEGIN SELECT RAISE(IGNORE); END",
    ),
}


@pytest.mark.only_on(*SKIPPING)
@pytest.mark.parametrize("name", QUEUES)
def test_a_job_whose_mark_a_trigger_skips_is_not_claimed(
    fresh_database: URL, name: str, db_alias: str
) -> None:
    if not runs_here(name, db_alias):
        return
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        for statement in SKIPPING[db_alias]:
            connection.exec_driver_sql(statement)
    with Session(engine) as session:
        add_emails(session, *"abc")
        session.commit()
        found: list[str] = []
        refusal = ""
        try:
            found = [job.recipient for job in QUEUES[name].claim(session, owner="a", limit=3)]
        except UnsupportedDatabase as error:
            refusal = str(error)
    engine.dispose()

    assert "b" not in found
    assert found or "trigger" in refusal


@pytest.mark.only_on("postgresql")
def test_a_claim_of_more_rows_than_its_limit_is_refused(fresh_database: URL) -> None:
    class OwnBase(DeclarativeBase):
        pass

    class Parent(JobMixin, OwnBase):
        __tablename__ = "parent"
        id: Mapped[int] = mapped_column(primary_key=True)

    engine = make_engine(fresh_database)
    OwnBase.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE child () INHERITS (parent)"))
        for table in ("parent", "child"):
            values = "SELECT n, 'unclaimed' FROM generate_series(1, 5) AS n"
            connection.execute(text(f"INSERT INTO {table} (id, status) {values}"))
    with Session(engine) as session, pytest.raises(UnsupportedDatabase, match="primary key"):
        JobQueue(Parent).claim(session, owner="w", limit=3)
    engine.dispose()
