"""What the adapters on the shared table have in common: how it is made, filled and counted."""

from __future__ import annotations

from sqlalchemy import func, insert, select

from benchmarks.adapters.adapter import Adapter
from benchmarks.adapters.model import Base, Job, make_engine, payloads

UNFINISHED = ("unclaimed", "claimed")


class OnSharedTable(Adapter):
    """An adapter on ``bench_job``."""

    def create(self) -> None:
        engine = make_engine(self.url)
        Base.metadata.drop_all(engine)
        Base.metadata.create_all(engine)
        engine.dispose()

    def fill(self, jobs: int) -> None:
        engine = make_engine(self.url)
        with engine.begin() as connection:
            connection.execute(insert(Job), payloads(jobs))
        engine.dispose()

    def left(self) -> int:
        engine = make_engine(self.url)
        unfinished = select(func.count()).where(Job.status.in_(UNFINISHED))
        with engine.connect() as connection:
            found = connection.execute(unfinished).scalar_one()
        engine.dispose()
        return found
