"""Where row locks do not hold, or a trigger skips the mark: no job is given to two claimers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, UnsupportedDatabase
from tests.cutting_proxy import FOR_UPDATE, SKIP_LOCKED, CuttingProxy
from tests.models import Base, Email, add_emails
from tests.support import SERVERS, STRATEGIES, make_engine

QUEUES: dict[str, JobQueue[Email]] = {
    **{
        name: JobQueue(Email, strategy=name)
        for name in ("skip_locked", "held", "candidates", "compare_and_set", "update_then_select")
    },
    "serial_by": JobQueue(Email, serial_by=Email.recipient),
    "strict_order": JobQueue(Email, strict_order=True),
}


def runs_here(name: str, db_alias: str) -> bool:
    return name in STRATEGIES[db_alias] or name in ("serial_by", "strict_order")


@pytest.fixture(params=[SKIP_LOCKED, FOR_UPDATE], ids=["no skip locked", "no for update"])
def proxy(request: pytest.FixtureRequest, db_url: URL) -> Iterator[CuttingProxy]:
    """A proxy whose server does not obey a locking clause."""
    with CuttingProxy(db_url, request.param) as proxy:
        yield proxy


@pytest.fixture
def deaf(proxy: CuttingProxy) -> Iterator[Engine]:
    """An engine behind the proxy."""
    engine = make_engine(proxy.url)
    yield engine
    engine.dispose()


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("name", QUEUES)
def test_two_claimers_never_keep_the_same_job_where_locks_do_not_hold(
    deaf: Engine, proxy: CuttingProxy, session: Session, name: str, db_alias: str
) -> None:
    if not runs_here(name, db_alias):
        return
    add_emails(session, *"abcde")
    claimed: list[int] = []
    refusals: list[UnsupportedDatabase] = []

    def claim_and_finish(owner: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        queue = QUEUES[name]
        with Session(deaf) as own:
            try:
                jobs = queue.claim(own, owner=owner, limit=3)
                ids = [job.id for job in jobs]
                meanwhile()
                queue.complete(own, jobs)
                own.commit()
                claimed.extend(ids)
            except UnsupportedDatabase as error:
                refusals.append(error)

    second = threading.Thread(target=claim_and_finish, args=("b",))

    def claim_too() -> None:
        second.start()
        second.join(0.1)  # it may wait until the first has ended

    claim_and_finish("a", claim_too)
    if second.ident is None:
        second.start()
    second.join()

    assert len(claimed) == len(set(claimed)), "a job was claimed twice"
    assert all("row locks do not hold" in str(error) for error in refusals)
    assert claimed or refusals
    assert proxy.cut or name == "update_then_select"


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


#: Claims that lock first, and so know which rows should have been marked.
LOCKING_FIRST = {
    "postgresql": {
        "candidates": JobQueue(Email, strategy="candidates"),
        "serial_by": QUEUES["serial_by"],
        "strict_order": QUEUES["strict_order"],
    },
    "sqlite": {"serial_by": QUEUES["serial_by"]},
}

#: Claims in one statement, or in an UPDATE that picks by itself.
IN_ONE = {
    "postgresql": {"skip_locked": JobQueue(Email)},
    "sqlite": {
        "compare_and_set": JobQueue(Email),
        "strict_order": QUEUES["strict_order"],
        "three statements": JobQueue(Email, order_by=Email.recipient),
    },
}


@pytest.fixture
def skipping(fresh_database: URL, db_alias: str) -> Iterator[Engine]:
    """An engine whose trigger skips the mark of the second of three jobs."""
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        add_emails(session, *"abc")
        for statement in SKIPPING[db_alias]:
            session.connection().exec_driver_sql(statement)
        session.commit()
    yield engine
    engine.dispose()


@pytest.mark.only_on(*SKIPPING)
def test_a_claim_that_locks_first_raises_where_a_trigger_skips_the_mark(
    skipping: Engine, db_alias: str
) -> None:
    for queue, limit, rows in itertools.product(
        LOCKING_FIRST[db_alias].values(), (2, 3), (False, True)
    ):
        with Session(skipping) as session, pytest.raises(UnsupportedDatabase, match="trigger"):
            (queue.claim_rows if rows else queue.claim)(session, owner="a", limit=limit)


@pytest.mark.only_on(*SKIPPING)
def test_a_claim_in_one_statement_leaves_a_job_out_whose_mark_a_trigger_skips(
    skipping: Engine, db_alias: str
) -> None:
    for queue, rows in itertools.product(IN_ONE[db_alias].values(), (False, True)):
        with Session(skipping) as session:
            jobs = (queue.claim_rows if rows else queue.claim)(session, owner="a", limit=3)

            assert [job.recipient for job in jobs] == ["a", "c"]


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("rows", [False, True], ids=["entities", "rows"])
def test_a_claim_of_rows_with_one_primary_key_is_refused(fresh_database: URL, rows: bool) -> None:
    """Tables that inherit have primary keys of their own, which may repeat that of the parent."""

    class OwnBase(DeclarativeBase):
        pass

    class Parent(JobMixin, OwnBase):
        __tablename__ = "parent"
        id: Mapped[int] = mapped_column(primary_key=True)
        account: Mapped[int] = mapped_column(server_default="1")

    engine = make_engine(fresh_database)
    OwnBase.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE child () INHERITS (parent)"))
        for table in ("parent", "child"):
            values = "SELECT n, 'unclaimed' FROM generate_series(1, 5) AS n"
            connection.execute(text(f"INSERT INTO {table} (id, status) {values}"))
    options: list[dict[str, Any]] = [
        *({"strategy": name} for name in ("skip_locked", "candidates", "held")),
        {"serial_by": Parent.account},
        {"strict_order": True},
    ]
    for option, limit in itertools.product(options, (2, 3)):
        queue = JobQueue(Parent, **option)
        with Session(engine) as session, pytest.raises(UnsupportedDatabase, match="INHERIT"):
            (queue.claim_rows if rows else queue.claim)(session, owner="w", limit=limit)
    engine.dispose()


@pytest.mark.only_on("postgresql")
def test_tables_that_inherit_are_claimed_together_where_keys_do_not_repeat(
    fresh_database: URL,
) -> None:
    engine = make_engine(fresh_database)
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE child () INHERITS (email)"))
        values = "SELECT 10 + n, 'child', 'unclaimed' FROM generate_series(1, 2) AS n"
        connection.execute(text(f"INSERT INTO child (id, recipient, status) {values}"))
    with Session(engine) as session:
        add_emails(session, *"ab")
        for _ in range(2):
            jobs = JobQueue(Email).claim(session, owner="w", limit=9)
            assert [job.id for job in jobs] == [1, 2, 11, 12]
            JobQueue(Email).release(session, jobs)
    engine.dispose()
