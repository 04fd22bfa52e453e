"""Where a run takes place: a server of its own, its network, its disk and its clock, as far as
this machine lets us have them; else a server that others use, too, and fewer faults.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from sqlalchemy import URL

from tests.chaos.clock import Clock, StepClock, can_be_stepped
from tests.chaos.disk import Disk, FullDisk
from tests.chaos.fault import Fault, everywhere
from tests.chaos.link import Cut, Link
from tests.chaos.own_server import Crash, OwnFolder, OwnServer
from tests.servers import provide
from tests.servers.errors import NotHere

#: What --faults may name.
FAULTS = ("kill", "stop", "connections", "crash", "cut", "disk", "clock")


@dataclass
class Ground:
    """What a run has.

    Attributes:
        faults: those that are wanted and can be done here.
        left_out: why others cannot be done here.
        far: the URL and the name of the network that can be cut off.
        clock: the file of SQLite's clock.
    """

    database: str
    wanted: Collection[str]
    stack: ExitStack
    faults: list[Fault] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    far: tuple[URL, str] | None = None
    clock: str | None = None
    version: str = ""

    def prepare(self) -> URL:
        """Make all that can be had, and return the URL of an empty database."""
        self.faults += [one for one in everywhere(self.database) if one.name in self.wanted]
        try:
            return self._on_own_server()
        except NotHere as missing:
            self.left_out.append(f"no server of its own, so no other faults: {missing}")
            return self._on_shared_server()

    def _on_own_server(self) -> URL:
        disk, clock = self._disk(), self._clock()
        if self.database == "sqlite":
            folder = OwnFolder(disk.folder if disk else None)
            self._has(folder, disk, clock)
            self.clock = clock.file if clock else None
            return folder.create_database("chaos")
        link = self._link()
        server = OwnServer(
            self.database,
            disk.folder if disk else None,
            clock.variables(processes=self.database == "postgresql") if clock else {},
            link.near if link else None,
        )
        self._has(server, disk, clock)
        url = server.create_database("chaos")
        if "crash" in self.wanted:
            self.faults.append(Crash(server))
        if link is not None:
            self.faults.append(Cut(link))
            self.far = url.set(host=link.near), link.namespace
        return url

    def _has(self, server: OwnServer | OwnFolder, disk: Disk | None, clock: Clock | None) -> None:
        self.stack.callback(server.stop)
        self.version = server.version
        if disk is not None:
            self.faults.append(FullDisk(server, disk))
        if clock is not None:
            self.faults.append(StepClock(clock))

    def _on_shared_server(self) -> URL:
        server, name = provide(self.database), f"sa_jobqueue_{secrets.token_hex(4)}"
        self.stack.callback(server.stop)
        self.stack.callback(server.drop_database, name)
        self.version = server.version
        return server.create_database(name)

    # -- what may be missing --------------------------------------------

    def _disk(self) -> Disk | None:
        if "disk" not in self.wanted:
            return None
        try:
            disk = Disk.mount()
        except NotHere as missing:
            self.left_out.append(f"disk: {missing}")
            return None
        self.stack.callback(disk.unmount)
        return disk

    def _link(self) -> Link | None:
        if "cut" not in self.wanted:
            return None
        link = Link()
        try:
            link.make()
        except NotHere as missing:
            self.left_out.append(f"cut: {missing}")
            return None
        self.stack.callback(link.remove)
        return link

    def _clock(self) -> Clock | None:
        if "clock" not in self.wanted:
            return None
        try:
            can_be_stepped(self.database)
        except NotHere as missing:
            self.left_out.append(f"clock: {missing}")
            return None
        clock = Clock.make()
        self.stack.callback(clock.remove)
        return clock


@contextmanager
def ground(database: str, wanted: Collection[str]) -> Iterator[tuple[Ground, URL]]:
    """Prepare all that a run needs, and remove it afterwards."""
    with ExitStack() as stack:
        made = Ground(database, wanted, stack)
        yield made, made.prepare()
