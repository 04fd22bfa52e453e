"""What a run has shown: its counts, and its faults by the checker and by the table of calls."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path

from sqlalchemy import func, outerjoin, select
from sqlalchemy.orm import Session

from tests.chaos.jobs import Booking, Bound, Entry, Handled, Report
from tests.chaos.storm import Storm
from tests.evidence.checker import check
from tests.evidence.history import COMMITTED, UNKNOWN, History, Record
from tests.models import Task
from tests.support import make_engine

#: A lock whose connection has gone silent is missed after half a minute.
UNNOTICED = timedelta(seconds=35)

#: A whole walk finds what stands before a claim's place within 10 s, and a stopped or cut off
#: player keeps rows locked until the server ends its session.
OVERTAKEN = timedelta(seconds=20)


@dataclass
class Verdict:
    """A judged run.

    Attributes:
        counts: what happened, by name, in the order in which it is printed.
        faults: what must not have happened, each as text.
    """

    counts: dict[str, int]
    faults: list[str]

    def lines(self) -> Iterator[str]:
        """Write the counts, then the faults."""
        for name, count in self.counts.items():
            yield f"{count:>8,}  {name}"
        yield f"{len(self.faults):>8,}  faults found"
        yield from self.faults


def judge(storm: Storm) -> Verdict:
    """Judge a run that has been drained."""
    history = History.read(*storm.histories, clock_steps=storm.clock_steps)
    calls = Calls.read(storm, history)
    faults = [
        "\n".join(fault.story())
        for fault in check(history, drained=True, unnoticed=UNNOTICED, overtaken=OVERTAKEN)
    ]
    ended = [f"{name} ended by itself: {code}" for name, code in storm.ended.items()]
    return Verdict(_counts(storm, history, calls), [*faults, *calls.faults(), *ended])


def _counts(storm: Storm, history: History, calls: Calls) -> dict[str, int]:
    entries = sum(count for _, _, count in calls.bookings)
    return {
        "jobs": len(calls.jobs),
        "bookings with exactly one entry, unless named below": entries,
        "reports that ran once, unless named below": len(calls.reports),
        "claims of jobs": _rows(history, "after_claim"),
        "renewals of jobs": _rows(history, "after_renew"),
        "jobs taken back by a reap": _rows(history, "after_reap"),
        "claims found lost": sum(len(jobs(record)) for record in of(history, "after_lost")),
        "locks of Owners found lost": len(of(history, "after_lock_lost")),
        "transactions whose end is unknown": sum(r.end == UNKNOWN for r in history.records),
        "calls of the handler": len(calls.calls),
        "calls after which the handler raised": sum(call.raised for call in calls.calls),
        **calls.repeated(),
        "workers ended since a call could not be freed": len(storm.stuck),
        **{f"faults done: {name}": count for name, count in sorted(storm.done.items())},
        **_losses(storm),
    }


def _losses(storm: Storm) -> dict[str, int]:
    noted = [player.losses for player in storm.players if player.losses.exists()]
    counted = Counter(line for path in noted for line in path.read_text().splitlines())
    return {f"faults done by a worker: {what}": count for what, count in sorted(counted.items())}


def of(history: History, event: str) -> list[Record]:
    """Return the records of an event."""
    return [record for record in history.records if record.event == event]


def jobs(record: Record) -> list[str]:
    """Return the keys of a record's jobs, as text."""
    return [json.dumps(job["key"]) for job in record.written.get("jobs", ())]


def _rows(history: History, event: str) -> int:
    return sum(len(jobs(record)) for record in of(history, event) if record.end == COMMITTED)


@dataclass
class Calls:
    """The calls of the handlers, as the table has them.

    Attributes:
        jobs: the status of each job.
        calls: by job and attempt.
        harmed: the players that were killed or stopped, or ended in the middle of a call.
        without_lock: the players whose Owner lost its lock.
        lost: the claims that living players found lost, as player and key.
        bookings: each with its status and the number of its entries.
        reports: each with its status, how often it ran, and how many parts were unfinished then.
        folder: where the logs are.
    """

    jobs: dict[int, str]
    calls: list[Handled]
    harmed: set[str]
    without_lock: set[str]
    lost: set[tuple[str, str]]
    bookings: Sequence[tuple[int, str, int]] = ()
    reports: Sequence[tuple[str, str, int, int]] = ()
    folder: Path | None = None

    @classmethod
    def read(cls, storm: Storm, history: History) -> Calls:
        """Read the tables, and from the history what excuses a second call."""
        engine = make_engine(storm.url)
        with Session(engine) as session:
            found = {row.id: row.status for row in session.execute(select(Task.id, Task.status))}
            calls = list(session.scalars(select(Handled).order_by(Handled.job, Handled.attempt)))
            session.expunge_all()
            entries = outerjoin(Booking, Entry, Entry.booking == Booking.id)
            counted = select(Booking.id, Booking.status, func.count(Entry.id)).select_from(entries)
            bookings = [row._tuple() for row in session.execute(counted.group_by(Booking.id))]
            runs, left = func.count(Bound.id), func.coalesce(func.sum(Bound.unfinished), 0)
            ran = select(Report.id, Report.status, runs, left)
            ran = ran.select_from(outerjoin(Report, Bound, Bound.report == Report.id))
            reports = [row._tuple() for row in session.execute(ran.group_by(Report.id))]
        engine.dispose()
        without_lock = {Path(record.file).stem for record in of(history, "after_lock_lost")}
        lost = {
            (Path(record.file).stem, key)
            for record in of(history, "after_lost")
            for key in jobs(record)
        }
        harmed = storm.harmed | storm.stuck
        return cls(found, calls, harmed, without_lock, lost, bookings, reports, storm.folder)

    def faults(self) -> Iterator[str]:
        """Find jobs that were not handled, or more often than the faults explain.

        A booking is done, and has exactly one entry; a report ran once, after its parts.
        """
        for report, status, runs, unfinished in self.reports:
            if (status, runs, unfinished) != ("done", 1, 0):
                ran = f"ran {runs} times with {unfinished} unfinished parts"
                yield f"report {report} is {status}, and {ran}"
        for booking, status, count in self.bookings:
            if (status, count) != ("done", 1):
                yield f"booking {booking} is {status} and has {count} entries"
        yield from (
            f"job {job} is {status}" for job, status in self.jobs.items() if status != "done"
        )
        handled = {call.job for call in self.calls if not call.raised}
        yield from (f"job {job} was never handled" for job in self.jobs.keys() - handled)
        for call, later in self._pairs():
            if call.attempt == later.attempt:
                yield f"attempt {call.attempt} of job {call.job} was handled twice"
            if not call.raised and self._excuse(call) is None:
                told = (
                    f"job {call.job} was handled by {call.player} in attempt {call.attempt}, "
                    f"and again by {later.player} in attempt {later.attempt}"
                )
                yield "\n  ".join((told, *self._log_of(call)))

    def _log_of(self, call: Handled) -> Iterator[str]:
        """Yield the lines of a player's log that name a job."""
        log, named = self.folder and self.folder / f"{call.player}.log", f"Task {call.job} "
        if log and log.exists():
            yield from (line for line in log.read_text().splitlines() if named in line)

    def repeated(self) -> dict[str, int]:
        """Count the calls that were followed by another though they did not raise."""
        excuses = (self._excuse(call) for call, _ in self._pairs() if not call.raised)
        counted = Counter(excuse or "no reason" for excuse in excuses)
        return {f"calls repeated: {excuse}": count for excuse, count in sorted(counted.items())}

    def _pairs(self) -> Iterator[tuple[Handled, Handled]]:
        """Yield each call of a job with the next one."""
        for _, calls in groupby(self.calls, attrgetter("job")):
            yield from pairwise(calls)

    def _excuse(self, call: Handled) -> str | None:
        """Tell why a call that did not raise may be followed by another."""
        if call.player in self.harmed:
            return "its worker was killed or stopped"
        if call.player in self.without_lock:
            return "its worker's Owner lost its lock"
        if (call.player, f"[{call.job}]") in self.lost:
            return "its worker found the claim lost"
        return None
