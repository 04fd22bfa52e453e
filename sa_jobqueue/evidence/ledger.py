"""The ledger: a file with a line for each event, and a line for the end of its transaction.

::

    with Ledger("history.jsonl") as ledger:
        ledger.listen(Email)
        worker.run()

The line of an event is written within the verb's transaction, before its COMMIT, and the line of
its end after it. So a process that is killed in between leaves an event without an end: whether
it was committed is unknown, and the checker takes it for both.

Several processes may write to one file: each line is one write of its own to the file's end. On a
network's file system give each process a file of its own; the checker takes several.

Limits: what no verb does is not seen. Under AUTOCOMMIT a verb has committed before its line is
written, so a killed process may leave out its last verb. The content is not synchronized to the
disk: the lines survive the death of the process, but not that of the machine.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from ..errors import ArgumentError
from ..events.event import Event
from ..events.listener import Recorder
from ..events.listeners import add_listener, remove_listener
from ..sessions.transaction_end import TransactionEnd
from ..sessions.writer import Writer
from .lines import end_line, event_line

log = logging.getLogger("sa_jobqueue.evidence")


class Ledger(Recorder):
    """Record the events of classes and queues in a file, from ``listen()`` to the end.

    A line that cannot be written is logged as an error, and the verb goes on.

    Args:
        path: the file; it is created, and lines are added to its end.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o644)
        self._targets: list[Any] = []
        self._closed = False

    def listen(self, *targets: Any) -> Ledger:
        """Record the events of mapped classes, or of JobQueues, from now on; return the ledger.

        A class records all that happens to its jobs in this process. A queue alone records what
        its own methods do: enough for its claims, and too little to judge rows that others
        change.

        Raises:
            ArgumentError: no queue, or the ledger is closed.
        """
        if self._closed:
            raise ArgumentError("this ledger is closed: open another one on the same file")
        for target in targets:
            add_listener(target, self, None)
            self._targets.append(target)
        return self

    def close(self) -> None:
        """Stop recording."""
        while self._targets:
            remove_listener(self._targets.pop(), self, None)
        if not self._closed:
            self._closed = True
            os.close(self._file)

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def noted(self, event: Event, number: str, writer: Writer | None) -> None:
        """Write the line of an event."""
        self._write(event_line(event, number))

    def ended(self, number: str, end: TransactionEnd) -> None:
        """Write the line of its transaction's end."""
        self._write(end_line(number, end))

    def _write(self, line: str) -> None:
        if self._closed:  # its transaction ended later
            return
        try:
            os.write(self._file, line.encode())
        except OSError as error:
            log.error("a line of the ledger could not be written: %s", error)
