"""Histories written by hand, a step at a time.

::

    Written(folder).tell("claim a 1; reap a 1; claim b 2 attempts=2 file=other")

A step is a verb, the owner, the seconds of its dates by the database's clock, and what else is said
of it. Each step is noted a second after the one before it.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

EVENTS = {
    "claim": "after_claim",
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
    """The files of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: Counter[str] = Counter()
        self._second = 0

    def files(self) -> list[Path]:
        return sorted(self._folder.glob("*.jsonl"))

    def tell(self, history: str) -> None:
        """Write steps that are divided by semicolons."""
        for step in history.split(";"):
            verb, *words = step.split()
            said: dict[str, Any] = dict(word.split("=") for word in words if "=" in word)
            said = {name: int(value) if value.isdigit() else value for name, value in said.items()}
            seconds = [int(word) for word in words if word.isdigit()]
            owners = [word for word in words if "=" not in word and not word.isdigit()]
            self._note(verb, *owners[:1], seconds=seconds, **said)

    def _note(
        self,
        verb: str,
        owner: str | None = None,
        *,
        seconds: list[int],
        key: int = 7,
        event: str | None = None,
        end: str = "committed",
        at: int | None = None,
        file: str = "history",
        fence: str = "claimed",
        attempts: int | None = None,
        error: str | None = None,
        order: int | None = None,
        strict: str | None = None,
        limit: str | None = None,
    ) -> None:
        """Write an event of one row, and how its transaction ended; "lost": nothing says so.

        `limit` is of the jobs of an account that are claimed at a time: "1", or "serial".
        """
        self._numbers[file] += 1
        self._second += 1
        number, time = f"{file}-1-{self._numbers[file]}", moment(self._second)
        job = {
            "key": [key],
            "dates": list(map(moment, seconds)),
            "owner": owner,
            "fence": fence if owner else None,
            "attempts": attempts or (1 if verb == "claim" else None),
            "order": [order],
            "keys": [["ann"]],
        }
        line = {
            "n": number,
            "t": time,
            "event": event or EVENTS[verb],
            "verb": verb,
            "table": "email",
            "jobs": [{name: value for name, value in job.items() if value is not None}],
            "error": error and error.replace("_", " "),
            "at": at and moment(at),
            "strict": strict,
            "limits": [[["account"], 1, limit == "serial"]] if limit else (),
        }
        ended = {"of": number, "end": end.replace("_", " "), "t": time}
        with (self._folder / f"{file}.jsonl").open("a", encoding="utf-8") as ledger:
            for written in [line] if end == "lost" else [line, ended]:
                ledger.write(json.dumps(written) + "\n")
