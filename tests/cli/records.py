"""The records that ``work --log-json`` writes."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from typing import Any

from click.testing import Result

Record = dict[str, Any]

#: How long a test waits for a record, in seconds.
PATIENCE = 100.0


def records(lines: str) -> list[Record]:
    """Read records, a JSON object in each line."""
    return [json.loads(line) for line in lines.splitlines()]


def ends(result: Result) -> list[tuple[Any, ...]]:
    """Return key and new status of each job that a command has handled, in their order."""
    assert result.exit_code == 0, result.output
    return [
        (*record["job_key"], record["status"])
        for record in records(result.stderr)
        if "job_key" in record
    ]


def messages(result: Result) -> list[str]:
    """Return what a command has logged."""
    return [record["message"] for record in records(result.stderr)]


class Listener:
    """Reads the records of a process while it runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._records: queue.Queue[Record] = queue.Queue()
        self._process = process
        self._heard: list[Record] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_for(self, said: str, *, times: int = 1) -> list[Record]:
        """Return the next records whose message contains this."""
        found: list[Record] = []
        deadline = time.monotonic() + PATIENCE
        while len(found) < times:
            record = self._next(said, deadline)
            if said in record["message"]:
                found.append(record)
        return found

    def wait_for_silence(self) -> None:
        """Wait until the process has ended, and all that it has started."""
        self._reader.join(PATIENCE)
        assert not self._reader.is_alive()

    def _next(self, said: str, deadline: float) -> Record:
        try:
            record = self._records.get(timeout=max(deadline - time.monotonic(), 0))
        except queue.Empty:
            raise AssertionError(f"{said!r} was never logged: {self._heard}") from None
        self._heard.append(record)
        return record

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._records.put(json.loads(line) if line.startswith("{") else {"message": line})
