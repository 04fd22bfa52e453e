"""check(): judge a history by the rules, in time that grows with its length.

Rows are independent, and each is read once: its entries name their claims. Only claim order and
limits compare rows with each other; they sort the claims by the database's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from .history import Entry, History
from .queue_rules import judge_queues
from .row_rules import RowStory, judge_row


@dataclass(frozen=True)
class Fault:
    """A broken promise.

    Attributes:
        rule: the name of the rule; docs/internals/evidence.md has the list.
        text: what is wrong.
        entries: the shortest part of the history that shows it.
    """

    rule: str
    text: str
    entries: list[Entry]

    def story(self) -> Iterator[str]:
        """Write the fault, then a line for each entry."""
        yield f"{self.rule}: {' '.join(self.entries[0].row)}: {self.text}"
        for entry in self.entries:
            record, attempts = entry.record, entry.job.get("attempts")
            yield (
                f"  {record.time:%H:%M:%S.%f} {record.verb} of {entry.row[1]} by {entry.owner} "
                f"at {', '.join(entry.dates)} attempt {attempts} {record.end} "
                f"({record.file}:{record.line})"
            )


def check(
    history: History,
    *,
    drained: bool = False,
    unnoticed: timedelta = timedelta(0),
    overtaken: timedelta | None = None,
) -> Iterator[Fault]:
    """Find what is wrong in a history.

    Args:
        drained: the run has ended with nothing left to do, so a job without an end is lost.
        unnoticed: for how long an owner may not notice that its lock is lost.
        overtaken: for how long later jobs of a plain queue may overtake one that is there and due.
            None: for ever.
    """
    stories = [RowStory(history, *row) for row in history.rows.items()]
    for story in stories:
        yield from (Fault(*found) for found in judge_row(story))
    found_there = judge_queues(
        history, stories, drained=drained, unnoticed=unnoticed, overtaken=overtaken
    )
    yield from (Fault(*found) for found in found_there)


def check_files(*paths: str | Path, drained: bool = False, **how: Any) -> list[Fault]:
    """Judge the files of a run; see :func:`check` and :meth:`History.read`."""
    return list(check(History.read(*paths, **how), drained=drained))
