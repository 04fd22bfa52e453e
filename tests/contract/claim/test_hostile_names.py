"""No name of a user's table or column meets a name of the library's own in a statement."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import Column, Engine, Index, Integer, MetaData, select
from sqlalchemy.orm import Session, registry

from sa_jobqueue import (
    JobMixin,
    JobQueue,
    PriorityMixin,
    RetryMixin,
    ScheduleMixin,
    advisory_session,
)
from tests.support import STRATEGIES

#: Names that statements of this library have had for their parameters, columns and aliases.
NAMES = (
    "job",
    "claimed",
    "keys",
    "picked",
    "known",
    "rounds",
    "claim_owner",
    "claim_0",
    "new_status",
)

#: Names that need quotes, and signs of parameters.
ODD = ["100%", "$sa$", "%s", ":id", "a`b", "o'clock", 'a"b', "a.b", "select", "Größe"]

TABLES = ["job", "100%", "keys", "$sa$", "a`:b", "o'clock"]

# SQLAlchemy 2.0.30 takes this name for a parameter of its own on SQLite; 2.0.58 does not.
if sqlalchemy.__version__ >= "2.0.58":
    ODD.append("%(id)s")
    TABLES.append("%(id)s")


def make_class(table: str, *, plain: bool = False) -> Any:
    """Map a class whose table has this name, and a column of each hostile name."""
    mixins: Sequence[type] = (JobMixin,)
    if not plain:
        mixins = (JobMixin, PriorityMixin, ScheduleMixin, RetryMixin)
    base: Any = registry(metadata=MetaData()).generate_base()
    columns = {f"c{index}": Column(name, Integer) for index, name in enumerate((*NAMES, *ODD))}
    return type(
        "Hostile",
        (*mixins, base),
        {
            "__tablename__": table,
            "__queue_args__": {"per_key": ["acct"]},
            # Two attributes with the names of each other's columns.
            "id": Column("acct", Integer, primary_key=True),
            "__table_args__": (Index(None, "status", "owner_date"),),
            "acct": Column("id", Integer, key="place"),
            **columns,
        },
    )


@pytest.mark.parametrize("plain", [False, True], ids=["all mixins", "JobMixin"])
def test_every_verb_serves_tables_and_columns_of_any_name(
    own_engine: Engine, db_alias: str, plain: bool
) -> None:
    ways = ["auto", *STRATEGIES[db_alias], "serial_by", "limit_by", "strict_order"]
    ways += ["advisory"] if db_alias == "postgresql" else []
    for table in TABLES[:1] if plain else TABLES:
        cls = make_class(table, plain=plain)
        cls.metadata.create_all(own_engine)
        for way in ways if table in TABLES[:2] else ("auto", "serial_by", "strict_order"):
            _use(own_engine, cls, way)
        with Session(own_engine) as session:
            _manage(session, cls)
            session.commit()


def _use(engine: Engine, cls: Any, way: str) -> None:
    """Claim and finish in each way, in one queue."""
    options: dict[str, Any] = {
        "serial_by": {"serial_by": cls.acct},
        "limit_by": {"limit_by": {cls.acct: 2}},
        "strict_order": {"strict_order": True},
    }
    queue = JobQueue(cls, **options.get(way, {"strategy": way}))
    with advisory_session(engine) if way == "advisory" else Session(engine) as session:
        queue.enqueue(session, [{"acct": n} for n in range(8)])
        session.commit()
        jobs = queue.claim(session, owner="w", limit=5)
        assert len(jobs) == 5, (cls.__table__.name, way)
        first, second, third, fourth, fifth = jobs
        queue.renew(session, jobs)
        queue.complete(session, first)
        queue.fail(session, [second], error="why")
        queue.release(session, third)
        queue.cancel_claimed(session, fourth, reason="no more")
        queue.complete(session, fifth, delete=True)
        session.commit()
        rows = queue.claim_rows(session, owner="w", limit=2)
        assert len(rows) == 2, (cls.__table__.name, way)
        queue.complete(session, rows)
        session.query(cls).delete()
        session.commit()


def _manage(session: Session, cls: Any) -> None:
    """Call the verbs that need no claim."""
    queue = JobQueue(cls)
    queue.enqueue(session, [{"acct": n} for n in range(8)])
    first, second, *_ = session.scalars(select(cls).order_by(cls.id)).all()
    assert queue.position(session, first) == 1
    if hasattr(cls, "priority"):
        queue.reprioritize(session, first, 5)
    assert queue.cancel(session, second) == [second]
    assert queue.retry(session, second) == [second]
    queue.complete(session, queue.claim(session, owner="w", limit=3))
    queue.claim(session, owner="dead", limit=2)
    queue.stats(session)
    queue.reap(session, lease=timedelta(microseconds=1))
    queue.prune(session, older_than=timedelta(0))
    session.query(cls).delete()
