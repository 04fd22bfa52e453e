"""A disk that can be full: a tmpfs that is made as small as what it holds."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import URL, Engine, NullPool, delete, insert
from sqlalchemy.exc import DBAPIError

from tests.chaos.fault import BEYOND_LEASE, NOTHING, Fault
from tests.chaos.jobs import Ballast
from tests.chaos.own_server import OwnFolder, OwnServer
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


class Disk:
    """A tmpfs of its own; needs root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def mount(cls) -> Disk:
        """Mount one; raise NotHere where that is not allowed."""
        if os.geteuid() != 0:
            raise NotHere("a small disk needs root")
        folder = Path(tempfile.mkdtemp(prefix="chaos-disk-"))
        try:
            mount("-t", "tmpfs", "-o", f"size={SIZE}m,mode=755", "chaos", str(folder))
        except NotHere:
            folder.rmdir()
            raise
        return cls(folder)

    def unmount(self) -> None:
        """Unmount it, also while a dying server still holds it."""
        subprocess.run(("umount", "--lazy", str(self.folder)), check=True)
        self.folder.rmdir()

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
        mount("-o", f"remount,size={size}", str(self.folder))


class FullDisk(Fault):
    """Fill the server's disk, have the server notice, and give the room back later.

    A server that ended for it is started again, as its supervisor would do.
    """

    name = "disk"

    def __init__(self, server: OwnServer | OwnFolder, disk: Disk) -> None:
        self._server = server
        self._disk = disk

    def happen(self, storm: Storm) -> str:
        if self._server.in_trouble:
            return NOTHING
        self._server.in_trouble = True
        self._disk.fill()
        refused = needs_room(storm.url)
        storm.later(storm.dice.uniform(0, BEYOND_LEASE), partial(self._free, storm))
        return "a full disk" if refused else "a full disk that the server did not notice"

    def _free(self, storm: Storm) -> None:
        self._disk.free()
        self._server.revive()
        throw_ballast(storm.url)
        storm.later(BEYOND_LEASE, self._server.calm)


def mount(*options: str) -> None:
    """Run mount; raise NotHere with its own words."""
    done = subprocess.run(("mount", *options), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotHere(done.stderr.strip())


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
