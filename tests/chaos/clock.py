"""A clock that can be stepped: libfaketime in front of the C library of a server.

SQLite has no server, and Python cannot sleep behind libfaketime. There SQLite's own function, which
reads the clock of its process, is replaced in each connection.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, event

from tests.chaos.fault import Fault
from tests.servers import debian
from tests.servers.errors import NotHere

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: Seconds of a step.
HOUR = 3600


class Clock:
    """The clock of the processes that have its variables."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.file = str(file)
        self.offset = self.highest = 0
        self.step(0)

    def variables(self, database: str) -> dict[str, str]:
        """Return the environment of a server."""
        processes = database == "postgresql"
        return {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": self.file,
            # A server of one process steps within a second; of several, each would by itself.
            "FAKETIME_NO_CACHE" if processes else "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Else a timed wait of MySQL's ends at once, and its threads wait in a busy loop.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
        }

    def step(self, offset: int) -> None:
        """Set the clock off by some seconds, for all processes at once."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset:+d}\n")
        os.replace(new, self._file)
        self.offset, self.highest = offset, max(self.highest, offset)


class StepClock(Fault):
    """Step the database's clock by an hour, forth or back, and the next time back to what it was.

    It ends at the latest time that it has had, so that leases end and delays are over.
    """

    name = "clock"
    cards = 2

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def happen(self, storm: Storm) -> str:
        storm.clock_steps = True
        before = self._clock.offset
        self._clock.step(0 if before else storm.dice.choice((HOUR, -HOUR)))
        return "the clock stepped forth" if self._clock.offset > before else "the clock set back"

    def settle(self) -> None:
        self._clock.step(self._clock.highest)


def under(engine: Engine, file: str | None) -> Engine:
    """Have SQLite's connections of an engine read a clock; without one they read the machine's."""
    if file is not None:
        event.listen(engine, "connect", partial(_replace_strftime, file))
    return engine


def _replace_strftime(file: str, connection: Any, record: object) -> None:
    plain = sqlite3.connect(":memory:", check_same_thread=False)

    def strftime(*arguments: str) -> str:
        step = (f"{Path(file).read_text().strip()} seconds",) if arguments[1] == "now" else ()
        marks = ", ".join("?" * len(arguments + step))
        found: str = plain.execute(f"SELECT strftime({marks})", arguments + step).fetchone()[0]
        return found

    # Deterministic: SQLite's own is called once for all rows of a statement, too.
    connection.create_function("strftime", -1, strftime, deterministic=True)


@contextmanager
def steppable_clock(database: str) -> Iterator[Clock]:
    """Make a clock that is right, where anybody may read it; raise NotHere without libfaketime."""
    if database != "sqlite":
        library()
    with tempfile.TemporaryDirectory(prefix="chaos-clock-") as folder:
        Path(folder).chmod(0o755)
        yield Clock(Path(folder, "offset"))


def library() -> Path:
    """Find libfaketime, or install it as root on Debian; raise NotHere without it."""
    for again in (True, False):
        for folder in (Path("/usr/lib"), Path("/usr/local/lib")):
            if (found := next(folder.glob("**/faketime/libfaketimeMT.so.1"), None)) is not None:
                return found
        if again:
            debian.install("libfaketime")
    raise NotHere("Debian's libfaketime is not where it was looked for")
