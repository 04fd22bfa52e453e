"""Rounds of drains, all adapters in turn, so that a slow minute is everybody's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks.adapters.catalogue import BASELINE, Entry
from benchmarks.drain import Drain, drain

#: A first drain of so many jobs tells how many the others take.
PILOT_JOBS = 400
FEWEST, MOST = 400, 200_000


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        seconds: how long a drain should take.
    """

    engine: str
    url: str
    workers: int
    batches: tuple[int, ...]
    rounds: int
    seconds: float


@dataclass(frozen=True)
class Result:
    """One adapter at one batch size, over all rounds.

    Attributes:
        drains: one for each round.
        ratios: its rate by the baseline's of the same round.
    """

    adapter: str
    batch: int
    drains: tuple[Drain, ...]
    ratios: tuple[float, ...]

    @property
    def rate(self) -> float:
        """The median of jobs in a second."""
        return median(drain.rate for drain in self.drains)

    @property
    def ratio(self) -> float:
        """The median of the ratios."""
        return median(self.ratios)

    @property
    def retries(self) -> int:
        """Transactions run again after a deadlock, in all rounds."""
        return sum(drain.retries for drain in self.drains)

    @property
    def fill_rate(self) -> float:
        """The median of jobs inserted in a second."""
        return median(drain.jobs / drain.fill_seconds for drain in self.drains)


def measure(plan: Plan, entries: list[Entry], tell: Callable[[Drain], None]) -> Iterator[Result]:
    """Measure all adapters at each batch size; yield what came of each.

    Args:
        tell: is given every drain when it is done.
    """
    for batch in plan.batches:
        fitting = [entry for entry in entries if batch == 1 or not entry.one_at_a_time]
        jobs = {entry.name: _jobs_of(plan, entry, batch) for entry in fitting}
        drains: dict[str, list[Drain]] = {entry.name: [] for entry in fitting}
        for number in range(plan.rounds):
            # Each round begins with another one: nobody is always behind the same.
            for entry in fitting[number:] + fitting[:number]:
                drained = _drain(plan, entry, batch, jobs[entry.name])
                tell(drained)
                drains[entry.name].append(drained)
        baseline = [drained.rate for drained in drains[BASELINE]]
        for name, of_adapter in drains.items():
            ratios = (own.rate / base for own, base in zip(of_adapter, baseline, strict=True))
            yield Result(name, batch, tuple(of_adapter), tuple(ratios))


def _jobs_of(plan: Plan, entry: Entry, batch: int) -> int:
    """Choose how many jobs keep an adapter busy for about as long as wanted."""
    pilot = _drain(plan, entry, batch, max(PILOT_JOBS, batch * plan.workers * 5))
    wanted = int(pilot.rate * plan.seconds)
    return min(max(wanted, FEWEST), MOST) // batch * batch


def _drain(plan: Plan, entry: Entry, batch: int, jobs: int) -> Drain:
    return drain(entry, plan.engine, plan.url, batch=batch, workers=plan.workers, jobs=jobs)
