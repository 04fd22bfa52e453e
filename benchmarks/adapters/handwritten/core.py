"""The baseline's statements through SQLAlchemy: what a library on top of it can reach at best."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    Connection,
    Integer,
    Update,
    bindparam,
    delete,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from benchmarks.adapters.model import Job, make_engine
from benchmarks.adapters.shared_table import OnSharedTable
from sa_jobqueue import is_transient

JOBS: Any = Job.__table__
READY = JOBS.c.status == literal_column("'unclaimed'")
PICK = select(JOBS.c.id).where(READY).order_by(JOBS.c.id).limit(bindparam("batch", type_=Integer))
MARK = update(JOBS).values(status=literal_column("'claimed'"), owner=bindparam("name"))
KEYS = JOBS.c.id.in_(bindparam("ids", expanding=True))
FINISH = delete(JOBS).where(KEYS)

BY_ARRAY = JOBS.c.id == func.any(
    func.array(
        PICK.with_for_update(skip_locked=True, key_share=True).correlate(None).scalar_subquery()
    )
)
CLAIM = {
    "postgresql": MARK.where(BY_ARRAY).values(owner_date=func.statement_timestamp()),
    "sqlite": MARK.where(JOBS.c.id.in_(PICK.correlate(None))).values(
        owner_date=literal_column("strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'")
    ),
}
LOCK = PICK.add_columns(JOBS.c.payload).with_for_update(skip_locked=True)
LOCK_ENTITIES = (
    select(Job)
    .where(READY)
    .order_by(Job.id)
    .limit(bindparam("batch", type_=Integer))
    .with_for_update(skip_locked=True)
)
MARK_LOCKED = MARK.where(KEYS).values(owner_date=func.utc_timestamp(literal_column("6")))


class Core(OnSharedTable):
    """Prebuilt statements on a Connection, with the commits of the baseline; no fence."""

    def open(self) -> None:
        connection = make_engine(self.url).connect()
        self.owner = f"worker-{os.getpid()}"
        claim = CLAIM.get(connection.dialect.name)
        self.claim: Any = None if claim is None else self.returning(claim)
        self.connection: Any = self.connect(connection)
        assert not self.claimed()
        self.connection.commit()

    def connect(self, connection: Connection) -> Any:
        """Return what the statements are run on."""
        return connection

    def returning(self, claim: Update) -> Any:
        """Have a claim in one statement return what it claimed."""
        return claim.returning(JOBS.c.id, JOBS.c.payload)

    def claimed(self) -> list[int]:
        """Claim the next batch, in whatever transaction is open."""
        wanted = {"batch": self.batch}
        if self.claim is not None:
            rows = self.connection.execute(self.claim, {**wanted, "name": self.owner})
            return sorted(row[0] for row in rows.all())
        ids = [row[0] for row in self.connection.execute(LOCK, wanted).all()]
        if ids:
            self.connection.execute(MARK_LOCKED, {"ids": ids, "name": self.owner})
        return ids

    def finished(self, ids: list[int]) -> None:
        """Finish a batch, in whatever transaction is open."""
        self.connection.execute(FINISH, {"ids": ids})

    def in_transaction(self, work: Callable[..., Any], *given: Any) -> Any:
        """Run work and commit, again after a deadlock."""
        while True:
            try:
                result = work(*given)
                self.connection.commit()
            except DBAPIError as error:
                if not is_transient(error):
                    raise
                self.connection.rollback()
                self.retries += 1
            else:
                return result

    def drain(self) -> list[int]:
        run: list[int] = []
        while ids := self.in_transaction(self.claimed):
            run += ids
            self.in_transaction(self.finished, ids)
        return run


class Orm(Core):
    """The same in a Session, with entities; the finish names their keys."""

    def connect(self, connection: Connection) -> Any:
        return Session(connection, expire_on_commit=False)

    def returning(self, claim: Update) -> Any:
        return select(Job).from_statement(claim.returning(*JOBS.c))

    def claimed(self) -> list[int]:
        wanted = {"batch": self.batch}
        if self.claim is not None:
            found = self.connection.scalars(self.claim, {**wanted, "name": self.owner})
            return sorted(job.id for job in found.all())
        jobs = self.connection.scalars(LOCK_ENTITIES, wanted).all()
        ids = [job.id for job in jobs]
        if ids:
            self.connection.execute(MARK_LOCKED, {"ids": ids, "name": self.owner})
        return ids
