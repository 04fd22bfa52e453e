"""The baseline's statements through SQLAlchemy: the best that a library on top of it can reach."""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import Integer, Update, bindparam, delete, func, literal_column, select, update

from benchmarks.adapters.model import Job
from benchmarks.adapters.shared_table import ThroughSQLAlchemy

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


class Core(ThroughSQLAlchemy):
    """Prebuilt statements on a Connection, with the commits of the baseline; no fence."""

    lock: ClassVar[Any] = LOCK

    def connect(self) -> Any:
        connection = super().connect()
        claim = CLAIM.get(self.engine.dialect.name)
        self.one_statement: Any = None if claim is None else self.returning(claim)
        return connection

    def returning(self, claim: Update) -> Any:
        """Make a claim in one statement return what it claimed."""
        return claim.returning(JOBS.c.id, JOBS.c.payload)

    def claim(self) -> list[int]:
        wanted = {"batch": self.batch}
        if self.one_statement is not None:
            return sorted(self.ids(self.one_statement, {**wanted, "name": self.owner}))
        ids = self.ids(self.lock, wanted)
        if ids:
            self.connection.execute(MARK_LOCKED, {"ids": ids, "name": self.owner})
        return ids

    def ids(self, statement: Any, parameters: dict[str, Any]) -> list[int]:
        """Run a statement, and return the keys of its rows."""
        return [row[0] for row in self.connection.execute(statement, parameters).all()]

    def finish(self, jobs: list[int]) -> None:
        self.connection.execute(FINISH, {"ids": jobs})


class Orm(Core):
    """The same in a Session, with entities; the finish names their keys."""

    session = True
    lock = LOCK_ENTITIES

    def returning(self, claim: Update) -> Any:
        return select(Job).from_statement(claim.returning(*JOBS.c))

    def ids(self, statement: Any, parameters: dict[str, Any]) -> list[int]:
        return [job.id for job in self.connection.scalars(statement, parameters).all()]
