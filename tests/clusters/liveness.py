"""Which life of an owner is known on which node, and that nobody living is taken for dead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import URL, Engine, delete, select
from sqlalchemy.orm import Session

from sa_jobqueue import Owner, claim, owner_state, reap
from tests.chaos.jobs import isolation, open_engine
from tests.clusters.cluster import Cluster
from tests.models import Task
from tests.support import make_engine, until

LONG = timedelta(hours=1)


@dataclass(frozen=True)
class Known:
    """What a node says of an owner while it lives, and after its end.

    Attributes:
        where: "its own node", "another node", or "the node that was promoted".
        reaped: of the living owner's claims, far from the end of their lease.
    """

    where: str
    alive: str
    ended: str
    reaped: int

    @property
    def fault(self) -> str | None:
        """What must not be: a living owner that is dead to somebody, or loses its claim."""
        if self.alive == "dead" or self.reaped:
            return f"asked at {self.where}, a living owner is {self.alive}; reaped: {self.reaped}"
        return None

    def __str__(self) -> str:
        return f"asked at {self.where}, an owner is {self.alive}, and after its end {self.ended}"


def known_liveness(urls: Sequence[URL]) -> Counter[Known]:
    """Ask each node of an owner of each, with one committed claim."""
    engines = [make_engine(url, **isolation(url)) for url in urls]
    try:
        return Counter(_known(own, asked) for own in engines for asked in engines)
    finally:
        for engine in engines:
            engine.dispose()


def _known(own: Engine, asked: Engine) -> Known:
    with Owner(own) as owner:
        name = owner.name
        _claim_by(owner, own)
        until(lambda: _owners(asked) == [name])
        alive, reaped = _state(asked, name), _reaped(asked)
    ended = _state(asked, name)
    _delete_tasks(asked)
    until(lambda: not _owners(own))
    return Known("its own node" if own is asked else "another node", alive, ended, reaped)


def _claim_by(owner: Owner, engine: Engine) -> None:
    """Commit a claim of one new task."""
    with Session(engine) as session:
        session.add(Task(name="liveness"))
        session.commit()
        claim(session, Task, owner=owner, limit=1)
        session.commit()


def _reaped(engine: Engine) -> int:
    """Reap by a long lease; return how many claims were taken back."""
    with Session(engine) as session:
        reaped = len(reap(session, Task, lease=LONG))
        session.commit()
        return reaped


def known_after_failover(cluster: Cluster) -> Counter[Known]:
    """Kill the primary under an owner that lives, and ask its successor of the owner."""
    engine = open_engine(cluster.urls[0])  # whose claim outlives the primary
    with Owner(engine) as owner:
        name = owner.name
        _claim_by(owner, engine)
        killed = cluster.fail_over()
        engine.dispose()
        alive, reaped = _state(engine, name), _reaped(engine)
    known = Known("the node that was promoted", alive, _state(engine, name), reaped)
    _delete_tasks(engine)
    engine.dispose()
    cluster.revive(killed)
    return Counter((known,))


def _state(engine: Engine, name: str) -> str:
    with Session(engine) as session:
        return str(owner_state(session, name))


def _owners(engine: Engine) -> Sequence[str | None]:
    with engine.connect() as connection:
        return connection.scalars(select(Task.owner)).all()


def _delete_tasks(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(delete(Task))
