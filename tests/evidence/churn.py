"""Processes that do anything to the jobs of three queues, and record it, until they are killed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import (
    ClaimLost,
    JobQueue,
    cancel_claimed,
    complete,
    fail,
    is_transient,
    reap,
    release,
    renew,
    retry,
)
from tests.contract.serial.keyed import Mail
from tests.evidence.bench import Bench
from tests.evidence.ledger import Ledger
from tests.models import Email, Task
from tests.processes import FORKSERVER
from tests.support import make_engine, with_begin

QUEUES: tuple[Callable[[], JobQueue[Any]], ...] = (
    lambda: JobQueue(Task),
    lambda: JobQueue(Email, strict_order=True),
    lambda: JobQueue(Mail, serial_by=Mail.account_id),
    lambda: JobQueue(Mail, limit_by={Mail.account_id: 1}),
)


def _fail(session: Session, claimed: Any) -> None:
    """Fail jobs, to be tried again at once where their class counts attempts."""
    waits = timedelta(0) if all(hasattr(job, "attempts") for job in claimed) else None
    fail(session, claimed, retry_in=waits)


FINISHES = (complete, complete, _fail, release, cancel_claimed, None)


def new_jobs(dice: random.Random) -> list[Any]:
    """Make a job or two of each class."""
    return [
        Task(name="a"),
        Email(recipient="a"),
        *(Mail(account_id=dice.randrange(3)) for _ in "ab"),
    ]


def churn(url: str, path: str, owner: str, seconds: float, options: dict[str, Any]) -> None:
    """Insert, claim, renew, finish and reap by chance, with rollbacks, for some time."""
    dice, end = random.Random(owner), time.monotonic() + seconds
    engine = _engine(url, options)
    queues = [queue() for queue in QUEUES]
    with Ledger(path).listen(Task, Email, Mail), Session(engine, expire_on_commit=False) as session:
        while time.monotonic() < end:
            try:
                _anything(session, dice, dice.choice(queues), owner)
            except DBAPIError as error:
                session.rollback()
                if not is_transient(error):
                    raise
    engine.dispose()


def _engine(url: str, options: dict[str, Any]) -> Engine:
    """Make an engine whose transactions begin before their first savepoint, on SQLite too."""
    engine = make_engine(url, **options)
    return with_begin(engine) if engine.url.get_backend_name() == "sqlite" else engine


def _anything(session: Session, dice: random.Random, queue: JobQueue[Any], owner: str) -> None:
    if dice.random() < 0.3:
        session.add_all(new_jobs(dice))
        session.commit()
    claimed = queue.claim(session, owner=owner, limit=dice.choice([1, 1, 3]))
    if dice.random() < 0.2:
        session.rollback()
        return
    session.commit()
    if dice.random() < 0.3:
        _tried(session, dice, renew, claimed)
    finish = dice.choice(FINISHES)  # None: it is left to a reap
    if finish is not None:
        _tried(session, dice, finish, claimed)
    if dice.random() < 0.2:
        reap(session, queue.entity, lease=timedelta(milliseconds=50))
        session.commit()
    if finish is complete and dice.random() < 0.1:
        retry(session, claimed)
        session.commit()


def _tried(session: Session, dice: random.Random, verb: Callable[..., None], claimed: Any) -> None:
    with suppress(ClaimLost):
        if dice.random() < 0.3:
            with session.begin_nested():
                verb(session, claimed)
        else:
            verb(session, claimed)
    if dice.random() < 0.1:
        session.rollback()
    session.commit()


def drain(url: str, path: str, options: dict[str, Any]) -> None:
    """Take every claim back, and finish what is left."""
    engine = _engine(url, options)
    with Ledger(path).listen(Task, Email, Mail), Session(engine, expire_on_commit=False) as session:
        for entity in (Task, Email, Mail):
            reap(session, entity, max_runtime=timedelta(0))
            session.commit()
        for queue in (QUEUES[0](), QUEUES[1](), QUEUES[3]()):
            while claimed := queue.claim(session, owner="last", limit=50):
                session.commit()
                queue.complete(session, claimed)
                session.commit()
            session.commit()
    engine.dispose()


def run_churn(bench: Bench, *, seconds: float) -> list[Path]:
    """Let three processes churn, kill one of them, drain the tables; return the ledgers."""
    url = bench.engine.url.render_as_string(hide_password=False)
    on_sqlite = bench.engine.url.get_backend_name() == "sqlite"
    options = {} if on_sqlite else {"isolation_level": "READ COMMITTED"}
    # A file of its own for one process; the others share a file.
    paths = [bench.path.with_name(f"{number}.jsonl") for number in range(2)]
    processes = [
        FORKSERVER.Process(
            target=churn,
            args=(url, str(paths[number % 2]), f"churn-{number}", seconds, options),
        )
        for number in range(3)
    ]
    for process in processes:
        process.start()
    time.sleep(seconds / 2)
    processes[0].kill()
    for process in processes:
        process.join()
    drain(url, str(paths[0]), options)
    assert [process.exitcode for process in processes] == [-9, 0, 0]
    return paths
