"""Where row locks do not hold, or a trigger skips the mark: no job is given to two claimers."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, event, text
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, UnsupportedDatabase, assume_locks, claim
from tests.cutting_proxy import FOR_UPDATE, SKIP_LOCKED, CuttingProxy
from tests.models import Email, Task, add_emails, add_tasks, recipients
from tests.support import SERVERS, STRATEGIES, make_engine

QUEUES: dict[str, JobQueue[Email]] = {
    **{
        name: JobQueue(Email, strategy=name)
        for name in ("skip_locked", "held", "candidates", "compare_and_set", "update_then_select")
    },
    "serial_by": JobQueue(Email, serial_by=Email.recipient),
    "strict_order": JobQueue(Email, strict_order=True),
    "ordered": JobQueue(Email, order_by=Email.recipient),
}


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
    if name not in (*STRATEGIES[db_alias], "serial_by", "strict_order", "ordered"):
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


# A held claim proves once for each engine and table that its row locks keep others out


@pytest.fixture
def fresh(db_url: URL) -> Iterator[Engine]:
    """An engine that has proved nothing, with a pool of one connection."""
    engine = make_engine(db_url, pool_size=1, max_overflow=0, pool_timeout=1)
    yield engine
    engine.dispose()


def connections(engine: Engine) -> list[Any]:
    """Collect the connections that are made from now on."""
    made: list[Any] = []
    event.listen(engine, "connect", lambda connection, _: made.append(connection))
    return made


@pytest.mark.only_on(*SERVERS)
def test_the_locks_of_a_table_are_proved_once_beside_the_pool(
    fresh: Engine, session: Session
) -> None:
    add_emails(session, *"abc")
    add_tasks(session, "a")
    made = connections(fresh)

    with fresh.connect() as connection:
        assert not JobQueue(Email, Email.recipient == "?", strategy="held").claim_rows(connection)
    assert len(made) == 1  # nothing was claimed
    with fresh.connect() as connection:
        assert recipients(QUEUES["held"].claim_rows(connection, limit=2)) == ["a", "b"]
    for _ in range(3):
        with Session(fresh) as one:
            assert recipients(claim(one, Email, limit=2, strategy="held")) == ["a", "b"]
    assert len(made) == 2
    with Session(fresh) as one:
        assert len(claim(one, Task, strategy="held")) == 1

    assert len(made) == 3


@pytest.mark.only_on(*SERVERS)
@pytest.mark.parametrize("why", ["others see no row", "too many connections"])
def test_where_a_lock_cannot_be_proved_the_server_is_trusted_and_the_log_says_so(
    fresh: Engine, caplog: pytest.LogCaptureFixture, session: Session, why: str
) -> None:
    caplog.set_level(logging.INFO, "sa_jobqueue.claim")
    error = fresh.dialect.loaded_dbapi.OperationalError

    def refuse(*_: Any) -> None:
        raise error(why)

    with Session(fresh) as one:
        one.add(Email(recipient="a"))
        one.flush()
        if why == "too many connections":
            one.commit()
            one.connection()
            event.listen(fresh, "do_connect", refuse)

        assert recipients(QUEUES["held"].claim(one)) == ["a"]

    assert "could not be proved: " in caplog.text
    assert why in caplog.text


@pytest.mark.only_on(*SERVERS)
def test_where_locks_are_assumed_nothing_is_proved(db_url: URL, session: Session) -> None:
    add_emails(session, "a")
    with CuttingProxy(db_url, FOR_UPDATE) as proxy:
        engine = make_engine(proxy.url)
        assume_locks(engine)
        with Session(engine) as one, Session(engine) as two:
            for session in (one, two):
                assert recipients(QUEUES["held"].claim(session)) == ["a"]
        engine.dispose()


# Triggers, and tables that inherit

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
    "postgresql": ("candidates", "serial_by", "strict_order"),
    "sqlite": ("serial_by", "ordered"),
}

#: Claims in one statement, or in an UPDATE that picks by itself.
IN_ONE = {"postgresql": ("skip_locked",), "sqlite": ("compare_and_set", "strict_order")}


@pytest.fixture
def skipping(own_engine: Engine, db_alias: str) -> Engine:
    """An engine whose trigger skips the mark of the second of three jobs."""
    with Session(own_engine) as session:
        add_emails(session, *"abc")
        for statement in SKIPPING[db_alias]:
            session.connection().exec_driver_sql(statement)
        session.commit()
    return own_engine


@pytest.mark.only_on(*SKIPPING)
@pytest.mark.parametrize("rows", [False, True], ids=["entities", "rows"])
def test_a_job_whose_mark_a_trigger_skips_is_left_out_or_the_claim_that_locked_it_raises(
    skipping: Engine, db_alias: str, rows: bool
) -> None:
    for name in LOCKING_FIRST[db_alias]:
        for limit in (2, 3):
            with Session(skipping) as session, pytest.raises(UnsupportedDatabase, match="trigger"):
                claim_from(QUEUES[name], session, rows, limit)
    for name in IN_ONE[db_alias]:
        with Session(skipping) as session:
            jobs = claim_from(QUEUES[name], session, rows, limit=3)

            assert [job.recipient for job in jobs] == ["a", "c"]


def claim_from(queue: JobQueue[Any], session: Session, rows: bool, limit: int) -> Any:
    return (queue.claim_rows if rows else queue.claim)(session, owner="w", limit=limit)


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("rows", [False, True], ids=["entities", "rows"])
def test_tables_that_inherit_are_claimed_together_unless_their_primary_keys_repeat(
    own_engine: Engine, rows: bool
) -> None:
    inherit = (
        "INSERT INTO child (id, recipient, status) SELECT id + :n, 'x', 'unclaimed' FROM email"
    )
    with Session(own_engine) as session:
        session.execute(text("CREATE TABLE child () INHERITS (email)"))
        add_emails(session, *"xxx")
        session.execute(text(inherit), {"n": 10})
        for _ in range(2):
            jobs = claim_from(QUEUES["skip_locked"], session, rows, limit=9)
            assert [job.id for job in jobs] == [1, 2, 3, 11, 12, 13]
            QUEUES["skip_locked"].release(session, jobs)

        session.execute(text("UPDATE child SET id = id - 10"))
        session.commit()
        names = ("skip_locked", "candidates", "held", "serial_by", "strict_order")
        for name, limit in itertools.product(names, (2, 3)):
            with pytest.raises(UnsupportedDatabase, match="INHERIT"):
                claim_from(QUEUES[name], session, rows, limit)
            session.rollback()
