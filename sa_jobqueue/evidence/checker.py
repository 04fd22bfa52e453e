"""check(): judge a history by the rules, in time that grows with its length.

::

    for fault in check(History.read("history.jsonl")):
        print("\\n".join(fault.story()))

Rows are independent, and each is read once: its entries name their claims. Only claim order and
limits compare rows with each other; they sort the claims by the database's clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from .fault import Fault
from .history import History
from .queue_rules import judge_queues
from .row_rules import judge_row, read_row


def check(history: History, *, drained: bool = False) -> Iterator[Fault]:
    """Find what is wrong in a history.

    Args:
        drained: the run has ended with nothing left to do, so a job without an end is lost.
    """
    stories = [read_row(history, row, entries) for row, entries in history.rows.items()]
    for story in stories:
        yield from judge_row(history, story)
    yield from judge_queues(history, stories, drained=drained)


def check_files(
    *paths: str | Path,
    drained: bool = False,
    skew: timedelta = timedelta(seconds=1),
    clock_steps: bool = False,
) -> list[Fault]:
    """Judge the files of a run; see :func:`check`.

    Args:
        skew: by how much the clocks of processes with files of their own, and of the database,
            may differ; a positive timedelta or zero.
        clock_steps: the database's clock was stepped: claims are ordered by the clocks of
            processes, which have to agree, and neither that clock nor claim order is judged.

    Raises:
        ArgumentError: a file cannot be read, or is no ledger's.
    """
    return list(check(History.read(*paths, skew=skew, clock_steps=clock_steps), drained=drained))
