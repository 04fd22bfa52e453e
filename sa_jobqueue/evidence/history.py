"""The files of a run, read as one history: what was done to each row, in which order."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import ArgumentError

COMMITTED, ROLLED_BACK, UNKNOWN = "committed", "rolled back", "unknown"

#: A row: its table, and its primary key as text.
Row: TypeAlias = tuple[str, str]


@dataclass(eq=False)
class Record:
    """An event with the end of its transaction.

    Attributes:
        file, line: where it stands; lines of one file were written in this order.
        time: when it was noted, by the clock of its process.
        end: how its transaction ended; unknown where the process died before it knew.
        ended: when the end was noted.
    """

    file: str
    line: int
    time: datetime
    event: str
    verb: str
    table: str
    written: dict[str, Any]
    end: str = UNKNOWN
    ended: datetime | None = None

    @property
    def process(self) -> str:
        """Names the process that noted it."""
        name: str = self.written["n"].rpartition("-")[0]
        return name

    @property
    def at(self) -> datetime | None:
        """The time of the verb by the database's clock, where it knew the time."""
        return _time(self.written.get("at"))


@dataclass(eq=False)
class Entry:
    """What a record tells of one row.

    Attributes:
        dates: every owner_date that the claim had; empty for a row that nobody had.
        final: whether the row has a finished status now; None: not known.
    """

    record: Record
    job: dict[str, Any]
    row: Row
    dates: tuple[str, ...] = ()

    @property
    def verb(self) -> str:
        """The verb."""
        return self.record.verb

    @property
    def sure(self) -> bool:
        """Whether it was committed."""
        return self.record.end == COMMITTED

    @property
    def final(self) -> bool | None:
        """Whether the row has a finished status now; None: not known."""
        found: bool | None = self.job.get("final")
        return found

    @property
    def owner(self) -> str | None:
        """Who has, or had, the row."""
        found: str | None = self.job.get("owner")
        return found

    @property
    def unmarked(self) -> bool:
        """Whether the claim wrote nothing."""
        return bool(self.job.get("unmarked"))

    @property
    def date(self) -> datetime:
        """The time of the claim, by the database's clock."""
        date = _time(self.dates[0])
        assert date is not None
        return date


@dataclass
class History:
    """All records of a run, in the order in which they were noted.

    Attributes:
        rows: the entries of each row, without those that were rolled back.
        rolled_back: those that were rolled back.
        openings: for each table the first and the last record that may have made any row
            claimable: a round was started, or jobs were inserted whose keys are not known.
        skew: by how much the clocks of processes and of the database may differ.
        clock_steps: the database's clock was stepped, so only the clocks of processes tell the
            order of claims.
    """

    records: list[Record] = field(default_factory=list)
    rows: dict[Row, list[Entry]] = field(default_factory=dict)
    rolled_back: dict[Row, list[Entry]] = field(default_factory=dict)
    openings: dict[str, tuple[Record, Record]] = field(default_factory=dict)
    skew: timedelta = timedelta(seconds=1)
    clock_steps: bool = False

    @classmethod
    def read(
        cls,
        *paths: str | Path,
        skew: timedelta = timedelta(seconds=1),
        clock_steps: bool = False,
    ) -> History:
        """Read the files of a run.

        Raises:
            ArgumentError: a file cannot be read, or a line is none of a ledger.
        """
        # Within a file the lines have their order, even where a clock was set back.
        files = [_in_order(_records(Path(path))) for path in paths]
        records = list(heapq.merge(*files, key=attrgetter("time")))
        history = cls(records, skew=skew, clock_steps=clock_steps)
        for record in history.records:
            kept = history.rolled_back if record.end == ROLLED_BACK else history.rows
            for entry in _entries(record):
                kept.setdefault(entry.row, []).append(entry)
            if record.verb in ("start_round", "enqueue") and not record.written.get("jobs"):
                first, _ = history.openings.get(record.table, (record, record))
                history.openings[record.table] = first, record
        return history

    def when(self, claim: Entry) -> datetime:
        """Tell when a claim was made, by the clock that orders claims."""
        return claim.record.time if self.clock_steps else claim.date

    def surely_before(self, first: Record, second: Record) -> bool:
        """Tell whether a record was noted before another, whatever the clocks say."""
        if first.file == second.file:
            return first.line < second.line
        return first.time + self.skew < second.time


def _entries(record: Record) -> Iterator[Entry]:
    for job in record.written.get("jobs", ()):
        row = (record.table, json.dumps(job["key"]))
        yield Entry(record, job, row, tuple(job.get("dates", ())))


def _records(path: Path) -> list[Record]:
    """Read the events of a file, each with its end."""
    records: dict[str, Record] = {}
    for line, written in _lines(path):
        try:
            if "of" in written:
                record = records[written["of"]]
                record.end, record.ended = written["end"], _time(written["t"])
            else:
                records[written["n"]] = _record(path, line, written)
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError(f"{path}:{line} is no line of a ledger: {error!r}") from error
    return list(records.values())


def _record(path: Path, line: int, written: dict[str, Any]) -> Record:
    time = _time(written["t"])
    assert time is not None
    return Record(
        str(path), line, time, written["event"], written["verb"], written["table"], written
    )


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        lines = path.read_text("utf-8").split("\n")
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            yield number, json.loads(line)
        except ValueError as error:
            if number == len(lines):  # the machine stopped in the middle of the last line
                return
            raise ArgumentError(f"{path}:{number} is no JSON: {error}") from error


def _in_order(records: Iterable[Record]) -> Iterator[Record]:
    """Give no record an earlier time than the one before it in the file."""
    latest: datetime | None = None
    for record in records:
        latest = record.time if latest is None else max(latest, record.time)
        record.time = latest
        yield record


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
