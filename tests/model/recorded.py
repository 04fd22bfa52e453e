"""A recorded history as steps of the model: one for each job of each event, and for each end.

What was rolled back is left out. A transaction has ended before its end was noted; so its end
comes where it was noted, or before the first event of others that needs it. Where an end is
unknown, there are two worlds.

The model knows a class with RetryMixin and the library's own words; no rounds, no signals and no
deletes; and one session at a time for each owner of a process.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, field
from datetime import datetime
from pathlib import Path

from sa_jobqueue.owners.alive import SEPARATOR
from tests.evidence.history import ROLLED_BACK, UNKNOWN, Entry, History, Record

#: How each verb ends a claim, in the words of the model.
ENDINGS = {
    "complete": "done",
    "fail": "failed",
    "release": "released",
    "cancel_claimed": "cancelled",
}
OF_WORKERS = {"claim", "renew", *ENDINGS}
#: Verbs of somebody who has claimed nothing; each is a step of its own.
OF_OTHERS = {"reap", "cancel", "retry"}
#: Verbs that the model does not see.
UNSEEN = {"enqueue", "flush", "start", "reprioritize", "check"}

#: With more unknown ends, there are too many worlds.
MOST_UNKNOWN = 4


@dataclass(frozen=True)
class Line:
    """A step, as the model's ``Entry`` describes it."""

    verb: str
    worker: str = ""
    row: int = 0
    date: int = 0
    how: str = ""
    happened: bool = False
    status: str = ""
    attempts: int = -1

    def __str__(self) -> str:
        return ", ".join(map(json.dumps, astuple(self)))


@dataclass(eq=False)
class Transaction:
    """What a worker did in one transaction; or one verb of somebody else, without a worker."""

    worker: str
    records: list[Record] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    @property
    def unknown(self) -> bool:
        """Whether nobody knows how it ended."""
        return self.records[-1].end == UNKNOWN


class Recorded:
    """The history of a table.

    Attributes:
        rows: a number for each row.
        keys: the key of each row, of whose jobs one is claimed at a time.
        names: the owner of each worker.
        unknown: the transactions whose end nobody knows.

    Raises:
        ValueError: the history has what the model does not know.
    """

    def __init__(self, *paths: Path, table: str) -> None:
        history = History.read(*paths)
        self.rows: dict[str, int] = {}
        self.keys: dict[int, str] = {}
        self.names: dict[str, str] = {}
        self._entries: dict[Record, list[Entry]] = {}
        for (found, row), entries in history.rows.items():
            if found == table:
                self._add_row(row, entries)
        told = (record for record in history.records if record in self._entries)
        self._timeline = list(_timeline(told))
        self._of: dict[Record, Transaction] = {}
        self._group()
        self.unknown = [found for found in dict.fromkeys(self._of.values()) if found.unknown]

    @property
    def plain(self) -> list[str]:
        """The workers with a plain name, whose leases may end."""
        return [worker for worker, name in self.names.items() if SEPARATOR not in name]

    def worlds(self) -> Iterator[list[Line]]:
        """Yield the steps of the history, once for each way in which unknown ends may have been.

        Raises:
            ValueError: too many ends are unknown.
        """
        if len(self.unknown) > MOST_UNKNOWN:
            raise ValueError(f"{len(self.unknown)} ends are unknown")
        for chosen in itertools.product([True, False], repeat=len(self.unknown)):
            happened = {found for found, yes in zip(self.unknown, chosen, strict=True) if yes}
            yield _Telling(self, happened).lines(self._timeline, self._of)

    def _add_row(self, row: str, entries: Iterable[Entry]) -> None:
        number = self.rows[row] = len(self.rows) + 1
        self.keys[number] = f"row {row}"
        for entry in entries:
            if entry.verb in OF_WORKERS | OF_OTHERS and entry.record.end != ROLLED_BACK:
                self._entries.setdefault(entry.record, []).append(entry)
            elif entry.verb not in UNSEEN:
                raise ValueError(f"the model does not know {entry.verb}")
            limits = entry.record.written.get("limits", ())
            for limit, key in zip(limits, entry.job.get("keys", ()), strict=False):
                self.keys[number] = f"{limit[0]} {key}"

    def _group(self) -> None:
        """Group the events by transactions: those of a worker until one of them has ended."""
        transactions: dict[str, Transaction] = {}
        for record, ends in self._timeline:
            worker = self._worker(record)
            if ends:
                if transactions.get(worker) is self._of[record]:
                    del transactions[worker]
                continue
            found = transactions.setdefault(worker, Transaction(worker)) if worker else None
            found = self._of[record] = found or Transaction("")
            found.records.append(record)
            found.entries.extend(self._entries[record])

    def _worker(self, record: Record) -> str:
        if record.verb not in OF_WORKERS:
            return ""
        owner = self._entries[record][0].owner or ""
        worker = f"{record.process} {owner}"
        self.names[worker] = owner
        return worker

    def entries_of(self, record: Record) -> list[Entry]:
        """Return what a record tells of the rows."""
        return self._entries[record]


def _timeline(records: Iterable[Record]) -> Iterator[tuple[Record, bool]]:
    """Yield each record when it was noted, and again, with True, when its end was."""
    moments: list[tuple[datetime, bool, Record]] = []
    for record in records:
        moments.append((record.time, False, record))
        if record.ended is not None:
            moments.append((max(record.time, record.ended), True, record))
    moments.sort(key=lambda moment: moment[:2])
    for _, ends, record in moments:
        yield record, ends


class _Telling:
    """One telling of a history: the numbers of its dates, and the transactions that are open."""

    def __init__(self, recorded: Recorded, happened: set[Transaction]) -> None:
        self._recorded = recorded
        self._happened = happened
        self._lines: list[Line] = []
        self._open: list[Transaction] = []
        self._told: dict[Transaction, int] = {}
        self._must_look: set[str] = set()
        self._unlocked: set[str] = set()
        self._clock = 1
        self._dates: dict[tuple[str, str], int] = {}

    def lines(
        self, timeline: Iterable[tuple[Record, bool]], of: dict[Record, Transaction]
    ) -> list[Line]:
        """Return the steps."""
        for record, ends in timeline:
            if ends:
                self._end(of[record])
            else:
                self._begin(record, of[record])
        for transaction in list(self._open):
            self._end(transaction)
        return self._lines

    def _begin(self, record: Record, transaction: Transaction) -> None:
        """Tell an event; transactions of others that are in its way have ended."""
        for other in [other for other in self._open if other is not transaction]:
            if self._told[other] == len(other.records) and self._needs(record, other):
                self._end(other)
        if transaction not in self._open:
            self._open.append(transaction)
        self._told[transaction] = self._told.get(transaction, 0) + 1
        if transaction.worker:
            self._tell(record, transaction.worker)

    def _needs(self, record: Record, other: Transaction) -> bool:
        theirs = {entry.row[1] for entry in other.entries}
        ours = {entry.row[1] for entry in self._recorded.entries_of(record)}
        if record.verb != "claim":
            return bool(theirs & ours)
        return bool(self._keys(theirs) & self._keys(ours))

    def _keys(self, rows: Iterable[str]) -> set[str]:
        return {self._recorded.keys[self._recorded.rows[row]] for row in rows}

    def _end(self, transaction: Transaction) -> None:
        if transaction not in self._open:
            return
        self._open.remove(transaction)
        happened = not transaction.unknown or transaction in self._happened
        if not transaction.worker:
            for record in transaction.records if happened else ():
                self._tell(record, "")
        elif transaction.unknown:
            self._lines.append(Line("loseAnswer", transaction.worker, happened=happened))
            self._must_look.add(transaction.worker)
        else:
            self._lines.append(Line("commit", transaction.worker))

    def _tell(self, record: Record, worker: str) -> None:
        if worker in self._must_look:
            self._must_look.remove(worker)
            self._lines.append(Line("look", worker))
        for entry in self._recorded.entries_of(record):
            self._lines.extend(self._steps(entry, worker, self._recorded.rows[entry.row[1]]))

    def _steps(self, entry: Entry, worker: str, row: int) -> Iterator[Line]:
        if entry.record.event == "after_lost":
            if entry.verb != "renew":  # a worker knows the claim still, if only for a while
                yield Line("findLost", worker, row)
            return
        status = str(entry.job.get("status", ""))
        if entry.verb in ("claim", "renew"):
            date = self._new_date(entry)
            attempts = entry.job.get("attempts", -1) if entry.verb == "claim" else -1
            yield Line(entry.verb, worker, row, date, status=status, attempts=attempts)
        elif entry.verb in ENDINGS:
            yield Line("finish", worker, row, self._date(entry), ENDINGS[entry.verb], status=status)
        else:
            if entry.verb == "reap":
                yield from self._deaths(entry.owner or "")
            yield Line(entry.verb, "", row, self._date(entry), status=status)

    def _deaths(self, name: str) -> Iterator[Line]:
        """An Owner whose claim is reaped has lost its lock."""
        for worker, owner in self._recorded.names.items():
            locked = worker not in self._unlocked and worker not in self._recorded.plain
            if owner == name and locked:
                self._unlocked.add(worker)
                yield Line("loseLock", worker)

    def _new_date(self, entry: Entry) -> int:
        """Number the date of a claim or of a renewal; no two have one date."""
        known = self._dates.setdefault((entry.row[1], entry.dates[-1]), self._clock)
        self._clock += 1
        return known

    def _date(self, entry: Entry) -> int:
        """Return the number of the latest known date that an entry names."""
        known = (self._dates.get((entry.row[1], date)) for date in reversed(entry.dates))
        return next((number for number in known if number is not None), 0)
