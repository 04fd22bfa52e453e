"""Ways to claim and finish that are profiled: from the driver alone to sa_jobqueue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from sqlalchemy import Integer, bindparam, delete, select, update
from sqlalchemy.orm import Session

from benchmarks.adapters.catalogue import BASELINE, CATALOGUE, INNODB, SQLITE
from benchmarks.adapters.model import Job, make_engine
from benchmarks.harness.host import load
from sa_jobqueue import JobQueue, utc_now

OWNER = "profiled"
TABLE: Any = Job.__table__


class Variant(ABC):
    """One way to claim and finish; each of its steps is timed."""

    def __init__(self, engine: str, url: str, batch: int) -> None:
        self.engine = engine
        self.url = url
        self.batch = batch

    def begin(self) -> None:  # noqa: B027 - most drivers begin by themselves
        """Begin a transaction."""

    @abstractmethod
    def claim(self) -> Any:
        """Claim a batch."""

    @abstractmethod
    def finish(self, jobs: Any) -> None:
        """Delete the rows of a batch."""

    @abstractmethod
    def commit(self) -> None:
        """Commit."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""


class Driver(Variant):
    """The driver alone: the baseline of the drains."""

    def __init__(self, engine: str, url: str, batch: int) -> None:
        super().__init__(engine, url, batch)
        adapter: Any = load(CATALOGUE[BASELINE].path_on(engine))
        self.adapter = adapter(url, batch)
        self.adapter.open()
        self.owner: Any = self.adapter if engine == SQLITE else self.adapter.connection

    def begin(self) -> None:
        if self.owner is self.adapter:
            self.adapter.begin()

    def claim(self) -> Any:
        return self.adapter.claimed()

    def finish(self, jobs: Any) -> None:
        self.adapter.finished(jobs)

    def commit(self) -> None:
        self.owner.commit()

    def close(self) -> None:
        self.adapter.connection.close()


class Statements:
    """What Core and the ORM run, built once."""

    def __init__(self, engine: str) -> None:
        limit: Any = bindparam("claim_limit", type_=Integer)
        waiting = select(TABLE.c.id).where(TABLE.c.status == "unclaimed").order_by(TABLE.c.id)
        picked = waiting.limit(limit)
        locked = picked.with_for_update(skip_locked=True, key_share=engine not in INNODB)
        marked = {
            "status": "claimed",
            "owner": bindparam("claim_owner"),
            "owner_date": utc_now(),
        }
        self.finish = delete(TABLE).where(TABLE.c.id.in_(bindparam("ids", expanding=True)))
        self.mark = (
            update(TABLE).where(TABLE.c.id.in_(bindparam("ids", expanding=True))).values(marked)
        )
        self.lock = locked.with_only_columns(TABLE.c.id, TABLE.c.payload)
        self.lock_entities = (
            select(Job)
            .where(Job.status == "unclaimed")
            .order_by(Job.id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        inner = picked if engine == SQLITE else locked
        claim = update(TABLE).where(TABLE.c.id.in_(inner.scalar_subquery())).values(marked)
        self.claim = claim.returning(TABLE.c.id, TABLE.c.payload)
        self.claim_entities = select(Job).from_statement(claim.returning(*TABLE.c))


class Core(Variant):
    """Core statements, built once, through a Connection."""

    def __init__(self, engine: str, url: str, batch: int) -> None:
        super().__init__(engine, url, batch)
        self.statements = Statements(engine)
        self.two = engine in INNODB
        self.made = make_engine(url)
        self.executor: Any = self.made.connect()
        self.limit = {"claim_limit": batch}
        self.request = {**self.limit, "claim_owner": OWNER}

    def claim(self) -> Any:
        if not self.two:
            return self.executor.execute(self.statements.claim, self.request).all()
        rows = self.executor.execute(self.statements.lock, self.limit).all()
        self._mark(rows)
        return rows

    def _mark(self, rows: Any) -> None:
        if rows:
            marks = {"ids": [row.id for row in rows], "claim_owner": OWNER}
            self.executor.execute(self.statements.mark, marks)

    def finish(self, jobs: Any) -> None:
        self.executor.execute(self.statements.finish, {"ids": [job.id for job in jobs]})

    def commit(self) -> None:
        self.executor.commit()

    def close(self) -> None:
        self.executor.close()
        self.made.dispose()


class ORM(Core):
    """Entities by an ORM statement, built once, through a Session."""

    def __init__(self, engine: str, url: str, batch: int) -> None:
        super().__init__(engine, url, batch)
        self.executor.close()
        self.executor = Session(self.made, expire_on_commit=False)

    def claim(self) -> Any:
        if not self.two:
            found = self.executor.scalars(self.statements.claim_entities, self.request)
            return found.all()
        entities = self.executor.scalars(self.statements.lock_entities, self.limit).all()
        self._mark(entities)
        return entities


class OurRows(Variant):
    """sa_jobqueue: claim_rows() and complete(delete=True)."""

    def __init__(self, engine: str, url: str, batch: int) -> None:
        super().__init__(engine, url, batch)
        self.queue = JobQueue(Job)
        self.made = make_engine(url)
        self.session = Session(self.made, expire_on_commit=False)

    def claim(self) -> Any:
        return self.queue.claim_rows(self.session, owner=OWNER, limit=self.batch)

    def finish(self, jobs: Any) -> None:
        self.queue.complete(self.session, jobs, delete=True)

    def commit(self) -> None:
        self.session.commit()

    def close(self) -> None:
        self.session.close()
        self.made.dispose()


class OurEntities(OurRows):
    """sa_jobqueue: claim() and complete(delete=True)."""

    def claim(self) -> Any:
        return self.queue.claim(self.session, owner=OWNER, limit=self.batch)


#: By the words of the tables.
VARIANTS: dict[str, type[Variant]] = {
    "driver alone": Driver,
    "Core": Core,
    "ORM entities": ORM,
    "rows": OurRows,
    "entities": OurEntities,
}
OURS = ("rows", "entities")
