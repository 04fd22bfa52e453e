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

COMMITTED, ROLLED_BACK, UNKNOWN = "committed", "rolled back", "unknown"
SECOND = timedelta(seconds=1)

#: A row: its table, and its primary key as text.
Row: TypeAlias = tuple[str, str]


@dataclass(eq=False)
class Record:
    """An event with the end of its transaction.

    Attributes:
        file, line: where it stands; lines of one file were written in this order.
        written: the line.
        end: how its transaction ended; unknown where the process died before it knew.
        ended: when the end was noted.
        time: when it was noted, by the clock of its process.
        process: names the process that noted it.
        at: the time of the verb by the database's clock, where it knew the time.
    """

    file: str
    line: int
    written: dict[str, Any]
    end: str = UNKNOWN
    ended: datetime | None = None

    def __post_init__(self) -> None:
        self.time = datetime.fromisoformat(self.written["t"])
        self.event: str = self.written["event"]
        self.verb: str = self.written["verb"]
        self.table: str = self.written["table"]
        self.process: str = self.written["n"].rpartition("-")[0]
        at = self.written.get("at")
        self.at = None if at is None else datetime.fromisoformat(at)


@dataclass(eq=False)
class Entry:
    """What a record tells of one row.

    Attributes:
        owner: who has, or had, the row.
        dates: every owner_date that the claim had; empty for a row that nobody had.
        sure: it was committed.
        final: whether the row has a finished status now; None: not known.
        unmarked: the claim wrote nothing.
    """

    record: Record
    job: dict[str, Any]

    def __post_init__(self) -> None:
        self.row: Row = self.record.table, json.dumps(self.job["key"])
        self.verb, self.sure = self.record.verb, self.record.end == COMMITTED
        self.owner: str | None = self.job.get("owner")
        self.dates: tuple[str, ...] = tuple(self.job.get("dates", ()))
        self.final: bool | None = self.job.get("final")
        self.unmarked = bool(self.job.get("unmarked"))

    @property
    def date(self) -> datetime:
        """The time of the claim, by the database's clock."""
        return datetime.fromisoformat(self.dates[0])


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

    records: list[Record]
    skew: timedelta = SECOND
    clock_steps: bool = False
    rows: dict[Row, list[Entry]] = field(default_factory=dict)
    rolled_back: dict[Row, list[Entry]] = field(default_factory=dict)
    openings: dict[str, tuple[Record, Record]] = field(default_factory=dict)

    @classmethod
    def read(
        cls, *paths: str | Path, skew: timedelta = SECOND, clock_steps: bool = False
    ) -> History:
        """Read the files of a run; raise ValueError if one is no ledger's."""
        # Within a file the lines have their order, even where a clock was set back.
        files = [_in_order(_records(Path(path))) for path in paths]
        return cls(list(heapq.merge(*files, key=attrgetter("time"))), skew, clock_steps)

    def __post_init__(self) -> None:
        for record in self.records:
            kept = self.rolled_back if record.end == ROLLED_BACK else self.rows
            jobs = record.written.get("jobs", ())
            for entry in (Entry(record, job) for job in jobs):
                kept.setdefault(entry.row, []).append(entry)
            if record.verb in ("start_round", "enqueue") and not jobs:
                first, _ = self.openings.get(record.table, (record, record))
                self.openings[record.table] = first, record

    def when(self, claim: Entry) -> datetime:
        """Tell when a claim was made, by the clock that orders claims."""
        return claim.record.time if self.clock_steps else claim.date

    def surely_before(self, first: Record, second: Record) -> bool:
        """Tell whether a record was noted before another, whatever the clocks say."""
        if first.file == second.file:
            return first.line < second.line
        return first.time + self.skew < second.time


def _records(path: Path) -> list[Record]:
    """Read the events of a file, each with its end."""
    try:
        lines = path.read_text("utf-8").split("\n")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    records: dict[str, Record] = {}
    for number, line in enumerate(lines, 1):
        try:
            written = json.loads(line or "null")
            if written and "of" in written:
                record = records[written["of"]]
                record.end, record.ended = written["end"], datetime.fromisoformat(written["t"])
            elif written is not None:
                records[written["n"]] = Record(str(path), number, written)
        except json.JSONDecodeError as error:
            if number < len(lines):  # the machine stopped in the middle of the last line
                raise ValueError(f"{path}:{number} is no JSON: {error}") from error
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path}:{number} is no line of a ledger: {error!r}") from error
    return list(records.values())


def _in_order(records: Iterable[Record]) -> Iterator[Record]:
    """Give no record an earlier time than the one before it in the file."""
    latest: datetime | None = None
    for record in records:
        latest = record.time = record.time if latest is None else max(latest, record.time)
        yield record
