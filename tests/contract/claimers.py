"""The functions that the processes of concurrency tests run; at module level, to be pickled."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any, TypeVar

from sqlalchemy import Engine, insert, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import Claim, JobQueue, advisory_session, complete, is_transient
from sa_jobqueue.databases import database_of
from tests.contract.subscriptions import Subscription, claim_subscriptions, mark
from tests.processes import FORKSERVER
from tests.support import make_engine

R = TypeVar("R")


class LogBase(DeclarativeBase):
    pass


class Finished(LogBase):
    """A line for each claim or finish, written in its transaction; nothing here is unique."""

    __tablename__ = "finished_log"
    id: Mapped[int] = mapped_column(primary_key=True)
    job: Mapped[int]
    process: Mapped[int]
    is_claim: Mapped[bool] = mapped_column(default=False)


def drain(url: str, entity: Any, strategy: str, batch: int, seed: int, all_ready: Barrier) -> None:
    """Claim and finish batches of any size up to `batch`, until nothing is left."""
    engine = make_engine(url)
    all_ready.wait()
    queue = JobQueue(entity, strategy=strategy)
    chance = random.Random(seed)
    empty = 0
    while empty < 3:
        claimed = claim_some(engine, queue, chance.randint(1, batch))
        empty = 0 if claimed or claimed.lost else empty + 1
    engine.dispose()


def claim_some(engine: Engine, queue: JobQueue[Any], limit: int) -> Claim[Any]:
    """Claim a batch and finish it: in one transaction if the claim is a held one."""

    def claim(session: Session) -> Claim[Any]:
        claimed = queue.claim(session, owner=f"process-{os.getpid()}", limit=limit)
        if claimed and queue.plan.strategy == "held":
            finish(session)(claimed)
        return claimed

    def finish(session: Session) -> Callable[[Claim[Any]], None]:
        def complete(claimed: Claim[Any]) -> None:
            queue.complete(session, claimed)
            lines = [{"job": fence.identity[0], "process": os.getpid()} for fence in claimed.fences]
            session.execute(insert(Finished), lines)

        return complete

    claimed = committed(engine, claim)
    if claimed and queue.plan.strategy != "held":
        committed(engine, lambda session: finish(session)(claimed))
    return claimed


def committed(engine: Engine, work: Callable[[Session], R]) -> R:
    """Run a transaction, and run it again after a deadlock or a busy database."""
    while True:
        with Session(engine, expire_on_commit=False) as session:
            try:
                database_of(session.connection()).begin_write(session.connection())
                result = work(session)
                session.commit()
                return result
            except DBAPIError as error:
                session.rollback()
                if not is_transient(error):
                    raise


def drain_by_locks(url: str, batch: int, seed: int) -> None:
    """Claim by advisory locks and finish, per item and per batch, until nothing is left.

    A claim that waits for any lock fails.
    """
    engine = make_engine(url)
    chance = random.Random(seed)
    empty = 0
    with advisory_session(engine) as session:
        while empty < 3:
            session.execute(text("SET LOCAL lock_timeout = '1ms'"))
            claimed = claim_subscriptions(
                session,
                limit=chance.randint(1, batch),
                order_by=chance.choice([(), Subscription.id, Subscription.id.desc()]),
            )
            session.commit()
            empty = 0 if claimed or claimed.lost else empty + 1
            for finished in [claimed] if chance.random() < 0.5 else [[job] for job in claimed]:
                lines = [{"job": job.id, "process": os.getpid()} for job in finished]
                if lines:
                    session.execute(insert(Finished), lines)
                mark(finished)
                complete(session, finished)
                session.commit()
    engine.dispose()


def run_processes(
    target: object, arguments: list[tuple[object, ...]], seconds: float = 240
) -> None:
    """Run a process for each tuple of arguments; fail if one fails."""
    processes = [
        FORKSERVER.Process(target=target, args=given, daemon=True)  # type: ignore[arg-type]  # any function
        for given in arguments
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(seconds)
    assert [process.exitcode for process in processes] == [0] * len(processes)
