"""A disk that can be full: a tmpfs that is made as small as what it holds."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL, Engine, NullPool, delete, insert
from sqlalchemy.exc import DBAPIError

from tests.chaos.fault import Outage
from tests.chaos.jobs import Ballast
from tests.chaos.own_server import Own
from tests.servers import debian
from tests.servers.errors import NotHere
from tests.support import make_engine

if TYPE_CHECKING:
    from tests.chaos.storm import Storm

#: How much the disk holds when it is not full, in MiB.
SIZE = 2048

#: So many rows of so many random bytes are tried, for at most so many seconds.
ROWS = 200
BYTES = 250_000
SECONDS = 5


@dataclass(frozen=True)
class Disk:
    """A tmpfs of its own."""

    folder: Path

    def fill(self) -> None:
        """Leave no room."""
        for _ in range(20):
            room = os.statvfs(self.folder)
            used = (room.f_blocks - room.f_bfree) * room.f_frsize
            with suppress(NotHere):  # it holds more by now
                self._resize(f"{max(used, 1)}")
                return

    def free(self) -> None:
        """Give the room back."""
        self._resize(f"{SIZE}m")

    def _resize(self, size: str) -> None:
        debian.run("mount", "-o", f"remount,size={size}", str(self.folder))


@contextmanager
def small_disk() -> Iterator[Disk]:
    """Mount a disk, and unmount it also while a dying server still holds it; needs root."""
    if os.geteuid() != 0:
        raise NotHere("a small disk needs root")
    folder = Path(tempfile.mkdtemp(prefix="chaos-disk-"))
    try:
        options = ("-t", "tmpfs", "-o", f"size={SIZE}m,mode=755")
        debian.run("mount", *options, "chaos", str(folder))
        try:
            yield Disk(folder)
        finally:
            debian.run("umount", "--lazy", str(folder))
    finally:
        folder.rmdir()


class FullDisk(Outage):
    """Fill the server's disk, have the server notice, and give the room back later.

    A server that ended for it is started again, as its supervisor would do.
    """

    name = "disk"

    def __init__(self, server: Own, disk: Disk) -> None:
        super().__init__(server)
        self._disk = disk

    def begin(self, storm: Storm) -> str:
        self._disk.fill()
        refused = needs_room(storm.url)
        return "a full disk" if refused else "a full disk that the server did not notice"

    def end(self, storm: Storm) -> None:
        self._disk.free()
        self.place.revive()
        throw_ballast(storm.url)


def needs_room(url: URL) -> bool:
    """Write until the database refuses for want of room; tell whether it has."""
    end = time.monotonic() + SECONDS
    try:
        with impatient(url).begin() as connection:
            for _ in range(ROWS):
                connection.execute(insert(Ballast), {"content": os.urandom(BYTES)})
                if time.monotonic() > end:
                    return False
    except DBAPIError:
        return True
    return False


def throw_ballast(url: URL) -> None:
    """Let the database use the room again, unless it is down."""
    with suppress(DBAPIError), impatient(url).begin() as connection:
        connection.execute(delete(Ballast))


def impatient(url: URL) -> Engine:
    """Make an engine that does not wait for a server that waits for room."""
    if url.get_backend_name() in ("mysql", "mariadb"):
        url = url.update_query_dict({"read_timeout": str(SECONDS)})
    return make_engine(url, poolclass=NullPool)
