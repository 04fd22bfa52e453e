"""CPU time of many calls, by step and by stage."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median

from sqlalchemy import insert

from benchmarks.adapters.model import Base, Job, make_engine, payloads
from benchmarks.harness.settling import settle
from benchmarks.profile.stages import OURS as OUR_OWN
from benchmarks.profile.stages import watched
from benchmarks.profile.variants import OURS, VARIANTS, Variant

WARM_UP = 30


@dataclass(frozen=True)
class Steps:
    """Microseconds of client CPU for one batch, the medians of all rounds."""

    claim: float
    claim_commit: float
    finish: float
    finish_commit: float

    @property
    def all(self) -> float:
        """Claim and finish, each with its COMMIT."""
        return self.claim + self.claim_commit + self.finish + self.finish_commit

    @classmethod
    def median_of(cls, rounds: Sequence[Steps]) -> Steps:
        """Take the median of each step."""
        return cls(*(median(getattr(one, name) for one in rounds) for name in cls.__annotations__))


@dataclass(frozen=True)
class Profile:
    """What was measured at one batch size.

    Attributes:
        variants: by name, from the driver alone to sa_jobqueue.
        stages: of sa_jobqueue, by name and stage, microseconds for one batch.
    """

    batch: int
    variants: dict[str, Steps]
    stages: dict[str, dict[str, float]]


def profile(
    engine: str, url: str, *, batch: int, calls: int, rounds: int, ours: Sequence[str] = OURS
) -> Profile:
    """Profile all variants in turn, several rounds, then ours by stage.

    Args:
        calls: claims of each round.
        ours: which of :data:`OURS`.
    """
    names = [name for name in VARIANTS if name in ours or name not in OURS]
    found: dict[str, list[Steps]] = {name: [] for name in names}
    for number in range(rounds):
        turned = number % len(names)
        for name in names[turned:] + names[:turned]:
            with prepared(name, engine, url, batch, calls) as variant:
                found[name].append(timed(variant, calls))
    variants = {name: Steps.median_of(steps) for name, steps in found.items()}
    stages = {name: _stages(name, engine, url, batch, calls) for name in ours}
    return Profile(batch, variants, stages)


def prepared(name: str, engine: str, url: str, batch: int, calls: int) -> closing[Variant]:
    """Connect a variant, fill the table for so many calls, and warm up."""
    made = make_engine(url)
    Base.metadata.drop_all(made)
    Base.metadata.create_all(made)
    variant = VARIANTS[name](engine, url, batch)
    with made.begin() as connection:
        connection.execute(insert(Job), payloads(batch * (calls + WARM_UP)))
    made.dispose()
    settle(engine, url)
    timed(variant, WARM_UP)
    gc.collect()
    return closing(variant)


def turns(variant: Variant, calls: int) -> Iterator[Steps]:
    """Claim and finish batches; yield what each step took."""
    clock = time.thread_time
    for _ in range(calls):
        begun = clock()
        variant.begin()
        jobs = variant.claim()
        claimed = clock()
        variant.commit()
        committed = clock()
        variant.begin()
        variant.finish(jobs)
        finished = clock()
        variant.commit()
        ended = clock()
        assert len(jobs) == variant.batch, f"{len(jobs)} of {variant.batch} jobs were claimed"
        yield Steps(claimed - begun, committed - claimed, finished - committed, ended - finished)


def timed(variant: Variant, calls: int) -> Steps:
    """Return the mean of each step, in microseconds."""
    steps = list(turns(variant, calls))
    sums = (sum(getattr(step, name) for step in steps) for name in Steps.__annotations__)
    return Steps(*(seconds / calls * 1e6 for seconds in sums))


def _stages(name: str, engine: str, url: str, batch: int, calls: int) -> dict[str, float]:
    with prepared(name, engine, url, batch, calls) as variant:
        dialect = make_engine(url).dialect
        with watched(dialect) as watch:
            for _ in range(calls):
                with watch.on(OUR_OWN):
                    jobs = variant.claim()
                    variant.commit()
                    variant.finish(jobs)
                    variant.commit()
        return {stage: own / calls * 1e6 for stage, own in watch.corrected().items()}
