"""A fault that the checker found, and the story that shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .history import Entry, Row


@dataclass(frozen=True)
class Fault:
    """A broken promise.

    Attributes:
        rule: the name of the rule; docs/evidence.md has the list.
        text: what is wrong.
        entries: the shortest part of the history that shows it.
    """

    rule: str
    text: str
    entries: Sequence[Entry]

    @property
    def row(self) -> Row:
        """The row, or the first of the rows."""
        return self.entries[0].row

    def story(self) -> Iterator[str]:
        """Write the fault, then a line for each entry."""
        table, key = self.row
        yield f"{self.rule}: {table} {key}: {self.text}"
        for entry in self.entries:
            yield f"  {_told(entry, several=len({entry.row for entry in self.entries}) > 1)}"


def _told(entry: Entry, *, several: bool) -> str:
    record = entry.record
    words = [record.time.strftime("%H:%M:%S.%f"), f"{record.verb:<14}"]
    if several:
        words.append(entry.row[1])
    if entry.owner is not None:
        words.append(f"by {entry.owner}")
    if entry.dates:
        words.append(f"of {_clock(entry.dates[0])}")
    if len(entry.dates) > 1:
        words.append(f"renewed {_clock(entry.dates[-1])}")
    if "attempts" in entry.job:
        words.append(f"attempt {entry.job['attempts']}")
    words += [record.end, f"({record.file}:{record.line})"]
    return " ".join(words)


def _clock(date: str) -> str:
    return date[11:].rstrip("Z")
