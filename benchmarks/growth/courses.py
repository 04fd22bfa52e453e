"""The rate over the course of one drain, with and without an old snapshot."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from benchmarks.adapters.ours import Keep
from benchmarks.drain import JobsLost
from benchmarks.growth.resting import rest
from benchmarks.growth.snapshots import snapshot_if
from benchmarks.harness.processes import Answer, ask_all, hosts

HOST = f"{__name__}:Timed"
PARTS = 10


class Timed(Keep):
    """Rows, kept as done; tells when each batch was finished."""

    def timed(self) -> list[tuple[float, int]]:
        """Drain, and return when each batch was finished and how many jobs it had."""
        batches: list[tuple[float, int]] = []
        while True:
            jobs = self.claimed()
            self.session.commit()
            if not jobs:
                return batches
            self.queue.complete(self.session, jobs, delete=self.delete)
            self.session.commit()
            batches.append((time.monotonic(), len(jobs)))


@dataclass(frozen=True)
class Course:
    """Jobs per second in each tenth of a drain, the medians of all rounds."""

    snapshot: bool
    batch: int
    workers: int
    jobs: int
    rounds: int
    rates: tuple[float, ...]

    @property
    def kept(self) -> float:
        """The last tenth but one by the first but one: both ends of a drain are ragged."""
        return self.rates[-2] / self.rates[1]


def courses(
    engine: str, url: str, *, batch: int, workers: int, jobs: int, rounds: int
) -> Iterator[Course]:
    """Drain with and without an old snapshot in turn.

    Raises:
        JobsLost: not every job was run once.
    """
    rates: dict[bool, list[list[float]]] = {False: [], True: []}
    for number in range(rounds):
        for snapshot in (False, True) if number % 2 == 0 else (True, False):
            rates[snapshot].append(_drain(engine, url, snapshot, batch, workers, jobs))
    for snapshot, of_rounds in rates.items():
        medians = tuple(round(median(rate), 1) for rate in zip(*of_rounds, strict=True))
        yield Course(snapshot, batch, workers, jobs, rounds, medians)


def _drain(
    engine: str, url: str, snapshot: bool, batch: int, workers: int, jobs: int
) -> list[float]:
    with hosts(workers + 1, sys.executable, HOST, url, batch) as (keeper, *crew):
        keeper.ask("create")
        ask_all(crew, "open")
        keeper.ask(f"fill {jobs}")
        rest(engine, url)
        with snapshot_if(snapshot, engine, url):
            answers = ask_all(crew, "timed")
        _check(answers, jobs, keeper.ask("left").result)
    return rates_of(answers)


def _check(answers: list[Answer], jobs: int, left: int) -> None:
    run = sum(count for answer in answers for _, count in answer.result)
    if run != jobs or left:
        raise JobsLost(f"of {jobs} jobs {run} were run, {left} are left")


def rates_of(answers: list[Answer]) -> list[float]:
    """Cut a drain into tenths of its jobs; return the rate of each."""
    batches = sorted(tuple(batch) for answer in answers for batch in answer.result)
    total = sum(count for _, count in batches)
    rates: list[float] = []
    begun, run, run_before = min(answer.begun for answer in answers), 0, 0
    for ended, count in batches:
        run += count
        if run >= total * (len(rates) + 1) / PARTS:
            rates.append((run - run_before) / (ended - begun))
            begun, run_before = ended, run
    return rates
