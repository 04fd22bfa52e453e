"""Claims and finishes timed, one by one, in one process."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from benchmarks.adapters.model import make_engine
from benchmarks.growth.resting import rest
from benchmarks.growth.snapshots import snapshot_if
from benchmarks.growth.tables import Growing, both
from sa_jobqueue import JobQueue

KINDS = ("rows", "entities")
WARM_UP = 20


@dataclass(frozen=True)
class Latency:
    """How long something took, in milliseconds."""

    p50: float
    p99: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Latency:
        """Sum up what was timed."""
        ordered = sorted(seconds)
        return cls(*(round(ordered[int(len(ordered) * part)] * 1e3, 4) for part in (0.5, 0.99)))


@dataclass(frozen=True)
class Size:
    """How large the table is while it is measured.

    Attributes:
        done: rows that are done.
        backlog: rows that wait.
    """

    done: int
    backlog: int


@dataclass(frozen=True)
class Timed:
    """What claim and finish took, each with its COMMIT.

    Attributes:
        snapshot: whether an old one was open.
        kind: rows or entities.
        claim: with its COMMIT, whose disk is the same for every size.
        statement: the claim before its COMMIT.
        small_claim, small_statement, small_finish: of the small table, measured in turn with
            the large one.
    """

    size: Size
    snapshot: bool
    kind: str
    batch: int
    claims: int
    claim: Latency
    statement: Latency
    finish: Latency
    small_claim: Latency
    small_statement: Latency
    small_finish: Latency

    @property
    def claim_ratio(self) -> float:
        """The large table's median by that of the small one."""
        return self.claim.p50 / self.small_claim.p50

    @property
    def statement_ratio(self) -> float:
        """The same of the claim before its COMMIT."""
        return self.statement.p50 / self.small_statement.p50

    @property
    def finish_ratio(self) -> float:
        """The same of the finish."""
        return self.finish.p50 / self.small_finish.p50


class Claimer:
    """One way to claim and finish batches of one table."""

    def __init__(self, table: Growing, kind: str, batch: int) -> None:
        self.table = table
        self.batch = batch
        self.session = Session(table.engine, expire_on_commit=False)
        queue: JobQueue[Any] = JobQueue(table.entity)
        self._complete = queue.complete
        self._claim: Callable[..., Any] = queue.claim_rows if kind == "rows" else queue.claim
        self.statements: list[float] = []
        self.claims: list[float] = []
        self.finishes: list[float] = []

    def turn(self) -> None:
        """Claim and finish one batch; let the table be as it was."""
        begun = time.perf_counter()
        jobs = self._claim(self.session, owner="measured", limit=self.batch)
        stated = time.perf_counter()
        self.session.commit()
        claimed = time.perf_counter()
        self._complete(self.session, jobs)
        self.session.commit()
        finished = time.perf_counter()
        assert len(jobs) == self.batch, f"{len(jobs)} of {self.batch} jobs were claimed"
        self.statements.append(stated - begun)
        self.claims.append(claimed - begun)
        self.finishes.append(finished - claimed)
        self.table.put_back([job.id for job in jobs])

    def forget(self) -> None:
        """Begin the figures anew."""
        for timed in (self.statements, self.claims, self.finishes):
            timed.clear()


def time_sizes(
    engine: str, url: str, sizes: Sequence[Size], *, batch: int, claims: int
) -> Iterator[list[Timed]]:
    """Grow a table from size to size, and time claims at each, without and with a snapshot.

    Args:
        sizes: from small to large; the small table stays at the first.
    """
    to = make_engine(url)
    large, small = both(to)
    small.grow(sizes[0].done, sizes[0].backlog)
    for size in sizes:
        large.grow(size.done, size.backlog)
        for snapshot in (False, True):
            rest(engine, url)
            with snapshot_if(snapshot, engine, url):
                yield [
                    _timed(size, snapshot, kind, claims, *pair)
                    for kind, pair in _run(large, small, batch, claims).items()
                ]
    to.dispose()


def _run(
    large: Growing, small: Growing, batch: int, claims: int
) -> dict[str, tuple[Claimer, Claimer]]:
    """Claim from both tables in turn, in each way in turn."""
    pairs = {kind: (Claimer(large, kind, batch), Claimer(small, kind, batch)) for kind in KINDS}
    claimers = [claimer for pair in pairs.values() for claimer in pair]
    for _ in range(min(WARM_UP, claims)):
        for claimer in claimers:
            claimer.turn()
    for claimer in claimers:
        claimer.forget()
    gc.collect()
    for number in range(claims):
        for claimer in claimers if number % 2 else reversed(claimers):
            claimer.turn()
    for claimer in claimers:
        claimer.session.close()
    return pairs


def _timed(
    size: Size, snapshot: bool, kind: str, claims: int, large: Claimer, small: Claimer
) -> Timed:
    return Timed(
        size=size,
        snapshot=snapshot,
        kind=kind,
        batch=large.batch,
        claims=claims,
        claim=Latency.of(large.claims),
        statement=Latency.of(large.statements),
        finish=Latency.of(large.finishes),
        small_claim=Latency.of(small.claims),
        small_statement=Latency.of(small.statements),
        small_finish=Latency.of(small.finishes),
    )
