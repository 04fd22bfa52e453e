"""The whole of growth, one part after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.growth.courses import PARTS, courses
from benchmarks.growth.crowd import CONSUMERS, crowd
from benchmarks.growth.report import Growth
from benchmarks.growth.sizes import Size, Timed, time_sizes


@dataclass(frozen=True)
class GrowthPlan:
    """How much is measured.

    Attributes:
        done: rows done, from small to large; the first stays while the backlog grows.
        backlog: rows that wait; the first stays while the rows done grow.
        claims: how many are timed at each size.
        drained: jobs of one whole drain, 0 for none.
        produced: jobs of each producer, 0 for none.
        crowd_batches: how many jobs a consumer claims at once.
    """

    engine: str
    url: str
    done: tuple[int, ...]
    backlog: tuple[int, ...]
    batch: int
    claims: int
    drained: int
    workers: int
    rounds: int
    produced: int
    producers: int
    consumers: int
    crowd_batches: tuple[int, ...]

    def __post_init__(self) -> None:
        if 0 < self.drained < PARTS * self.batch:
            raise ValueError(f"a drain in {PARTS} parts has at least {PARTS * self.batch} jobs")
        if min(self.backlog) < 2 * self.batch:
            raise ValueError(f"a backlog has at least {2 * self.batch} jobs, two batches")
        if any(list(sizes) != sorted(sizes) for sizes in (self.done, self.backlog)):
            raise ValueError("sizes are named from small to large")


def measure(plan: GrowthPlan, tell: Callable[[str], None]) -> Growth:
    """Measure all; `tell` is given a line for each part.

    Raises:
        JobsLost: not each job was run exactly once.
    """
    growth = Growth()
    smallest = plan.backlog[0]
    growth.done = _sizes(plan, [Size(done, smallest) for done in plan.done], tell)
    growth.backlog = _sizes(plan, [Size(plan.done[0], size) for size in plan.backlog], tell)
    if plan.drained:
        _drain(plan, growth, tell)
    if plan.produced:
        _crowd(plan, growth, tell)
    return growth


def _sizes(plan: GrowthPlan, sizes: list[Size], tell: Callable[[str], None]) -> list[Timed]:
    found = []
    for timed in time_sizes(plan.engine, plan.url, sizes, batch=plan.batch, claims=plan.claims):
        found += timed
        for one in timed:
            tell(
                f"{one.size.done:>9,} done, {one.size.backlog:>9,} waiting, {one.kind:>8}: "
                f"claim {one.claim.p50:.2f} ms = {one.claim_ratio:.2f}, before its COMMIT "
                f"{one.statement.p50:.2f} ms = {one.statement_ratio:.2f}"
                f"{', with an old snapshot' if one.snapshot else ''}"
            )
    return found


def _drain(plan: GrowthPlan, growth: Growth, tell: Callable[[str], None]) -> None:
    for course in courses(
        plan.engine,
        plan.url,
        batch=plan.batch,
        workers=plan.workers,
        jobs=plan.drained,
        rounds=plan.rounds,
    ):
        growth.courses.append(course)
        with_one = "an old snapshot" if course.snapshot else "no old snapshot"
        tell(f"drain with {with_one}: {course.kept:.2f} of its rate is kept")


def _crowd(plan: GrowthPlan, growth: Growth, tell: Callable[[str], None]) -> None:
    for batch in plan.crowd_batches:
        for way in CONSUMERS:
            found = crowd(
                plan.url,
                way,
                batch=batch,
                producers=plan.producers,
                consumers=plan.consumers,
                jobs=plan.produced,
            )
            growth.crowds.append(found)
            tell(
                f"{way} batch {batch}: {found.jobs / found.seconds:,.0f} jobs/s, "
                f"{sum(found.surfaced.values())} errors surfaced"
            )
