"""A user's own module with sources of bulk loads."""

from __future__ import annotations

import csv
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Engine

from sa_jobqueue.bulk import EnqueueSource
from tests.bulk.fakes import Numbers

from .shop import Message

ROWS = 100
NOT_A_SOURCE = 7
NUMBERS = Numbers(10, 3)


def numbers(engine: Engine) -> Numbers:
    """Load numbers, wherever --url points to."""
    return Numbers(10, 3)


def messages(engine: Engine) -> EnqueueSource:
    """Load a hundred messages."""
    return EnqueueSource(engine, Message, rows, total=ROWS, batch_size=10)


def repeated(engine: Engine) -> EnqueueSource:
    """Load messages, some of which have the same keys."""
    return EnqueueSource(engine, Message, [*rows(), *rows()], batch_size=10)


def no_file(engine: Engine) -> EnqueueSource:
    """Load messages of a file that is not there."""
    return EnqueueSource(engine, Message, lambda: csv.DictReader(Path("messages.csv").open()))


def rows() -> Iterator[dict[str, Any]]:
    """Number the messages: their keys are known before the insert."""
    for number in range(1, ROWS + 1):
        yield {"id": number, "recipient": f"{number}@example.org"}


def stopped_messages(engine: Engine) -> EnqueueSource:
    """Load messages, and have somebody press Ctrl-C in the second batch."""
    return EnqueueSource(engine, Message, stopped_rows, total=ROWS, batch_size=10)


def stopped_rows() -> Iterator[dict[str, Any]]:
    """Number the messages until somebody presses Ctrl-C."""
    for row in rows():
        if row["id"] == 15:
            os.kill(os.getpid(), signal.SIGINT)
        yield row
