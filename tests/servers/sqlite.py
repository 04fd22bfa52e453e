"""SQLite comes with Python; its server is a folder."""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL

from tests.servers.errors import NotHere
from tests.servers.keeping import make_folder
from tests.servers.provider import Provider
from tests.servers.server import Server

#: The files of a database that have locks of SQLite's.
ENDINGS = (".db", ".db-shm")


@dataclass(frozen=True, kw_only=True)
class SQLiteServer(Server):
    """Keep databases as files of one folder, beside the file that the URL names."""

    @property
    def folder(self) -> Path:
        return Path(self.url.database or "").resolve().parent

    @property
    def stays(self) -> bool:
        """Return True: a folder does not vanish by itself, as a server process does."""
        return True

    def databases(self, *, prefix: str) -> Sequence[str]:
        return sorted(path.stem for path in self.folder.glob(f"{prefix}*.db"))

    def stop(self) -> None:
        """Remove the folder, if it was made for this run."""
        if self.origin == "started":
            shutil.rmtree(self.folder, ignore_errors=True)

    def _create(self, name: str) -> None:
        with closing(sqlite3.connect(self.folder / f"{name}.db")) as connection:
            connection.execute("PRAGMA journal_mode = WAL")

    def _drop(self, name: str) -> None:
        # With the journal, the shared memory, and the lock files beside it.
        for path in self.folder.glob(f"{name}.db*"):
            path.unlink(missing_ok=True)

    def _url_of(self, name: str) -> URL:
        return self.url.set(database=str(self.folder / f"{name}.db"))


def refuse_to_open(folder: Path) -> None:
    """Refuse to open a database of this folder in this process, except by SQLite.

    Who closes a file drops all locks of the process on it. Another process that disconnects then
    takes itself for the last, and removes the journal; the next connection here gets "disk I/O
    error".
    """
    beginning = f"{folder}{os.sep}"

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | os.PathLike):
            path = os.fspath(arguments[0])
            if isinstance(path, str) and path.startswith(beginning) and path.endswith(ENDINGS):
                raise AssertionError(f"closing {path} would drop SQLite's locks on it: use cp")

    sys.addaudithook(refuse)


class SQLite(Provider):
    """Make a folder; there is nothing to search for."""

    name = "sqlite"
    server = SQLiteServer
    packages = ("python3",)

    def at(self, url: URL) -> Server:
        if url.database in (None, "", ":memory:"):
            raise NotHere("a database in memory cannot be shared by connections")
        return super().at(url)

    def places(self) -> Iterable[Callable[[], Server]]:
        return (self.started,)

    def started(self) -> Server:
        """Make a folder."""
        file = make_folder(self.name) / "admin.db"
        return self.found(URL.create("sqlite", database=str(file)), origin="started")

    def version_of(self, url: URL) -> str:
        return sqlite3.sqlite_version
