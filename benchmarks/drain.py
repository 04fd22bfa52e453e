"""One drain: fill a queue, let workers empty it, and check every job."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from benchmarks.adapters.catalogue import Entry
from benchmarks.adapters.environments import python_of
from benchmarks.harness.processes import Answer, ask_all, hosts
from benchmarks.harness.settling import settle


class JobsLost(AssertionError):
    """A queue lost jobs, or ran some twice."""


@dataclass(frozen=True)
class Drain:
    """What one drain came to.

    Attributes:
        seconds: from the start signal until the last worker found nothing more.
        fill_seconds: how long the jobs took to insert.
        retries: transactions that were run again after a deadlock.
    """

    adapter: str
    batch: int
    workers: int
    jobs: int
    seconds: float
    fill_seconds: float
    retries: int

    @property
    def rate(self) -> float:
        """Jobs in a second."""
        return self.jobs / self.seconds


def drain(entry: Entry, engine: str, url: str, *, batch: int, workers: int, jobs: int) -> Drain:
    """Drain one queue.

    Raises:
        JobsLost: not each job was run exactly once.
        HostFailed: an adapter's process ended early.
    """
    path, python = entry.path_on(engine), python_of(entry)
    with hosts(workers + 1, python, path, url, batch) as (keeper, *crew):
        keeper.ask("create")
        ask_all(crew, "open")
        filled = keeper.ask(f"fill {jobs}")
        settle(engine, url)
        done = ask_all(crew, "drain")
        left = keeper.ask("left").result
        ask_all(crew, "close")
    _check(entry, jobs, left, done)
    return Drain(
        adapter=entry.name,
        batch=batch,
        workers=workers,
        jobs=jobs,
        seconds=max(answer.ended for answer in done) - min(answer.begun for answer in done),
        fill_seconds=filled.seconds,
        retries=sum(answer.retries for answer in done),
    )


def _check(entry: Entry, jobs: int, left: int, answers: list[Answer]) -> None:
    """Compare what the workers ran with what was inserted."""
    run = Counter(number for answer in answers for number in answer.result)
    twice = sum(count > 1 for count in run.values())
    missing = len(set(range(1, jobs + 1)).difference(run))
    if twice or missing or left or len(run) != jobs:
        raise JobsLost(
            f"{entry.name}: of {jobs} jobs {twice} were run twice, {missing} never, {left} are left"
        )
