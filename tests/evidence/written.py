"""Histories written by hand, an entry at a time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

EVENTS = {
    "complete": "after_finish",
    "fail": "after_fail",
    "release": "after_release",
    "renew": "after_renew",
    "reap": "after_reap",
    "retry": "after_change",
    "flush": "after_enqueue",
}


def moment(second: int) -> str:
    return f"2026-05-01T14:{second // 60:02}:{second % 60:02}.000000Z"


class Written:
    """The files of a run; each line is noted a second after the one before it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: Counter[str] = Counter()
        self._second = 0

    def files(self) -> list[Path]:
        return sorted(self._folder.glob("*.jsonl"))

    def claim(self, owner: str, second: int, *, attempts: int = 1, **more: Any) -> None:
        """Write a claim, at a second by the database's clock."""
        self.note("claim", owner, second, event="after_claim", attempts=attempts, **more)

    def note(
        self,
        verb: str,
        owner: str | None = None,
        *seconds: int,
        key: int = 7,
        event: str | None = None,
        end: str | None = "committed",
        at: int | None = None,
        file: str = "history",
        fence: str = "claimed",
        attempts: int | None = None,
        error: str | None = None,
        job: dict[str, Any] | None = None,
        **written: Any,
    ) -> None:
        """Write an event of one row, and how its transaction ended; None: nobody knows.

        `job` is what else the event tells of the row, and `written` of itself.
        """
        self._numbers[file] += 1
        self._second += 1
        number, time = f"{file}-1-{self._numbers[file]}", moment(self._second)
        job = {"key": [key], "dates": [moment(second) for second in seconds], **(job or {})}
        known = {"owner": owner, "fence": fence if owner else None, "attempts": attempts}
        job |= {name: value for name, value in known.items() if value is not None}
        line: dict[str, Any] = {"n": number, "t": time, "event": event or EVENTS[verb]}
        line |= {"verb": verb, "table": "email", "jobs": [job], **written}
        if error is not None:
            line["error"] = error
        if at is not None:
            line["at"] = moment(at)
        lines = [line] if end is None else [line, {"of": number, "end": end, "t": time}]
        with (self._folder / f"{file}.jsonl").open("a", encoding="utf-8") as ledger:
            ledger.writelines(json.dumps(written) + "\n" for written in lines)
