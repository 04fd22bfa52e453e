"""Where a server may be had; the subclass of each database holds what differs."""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

from sqlalchemy import URL
from sqlalchemy.exc import SQLAlchemyError

from tests.servers.errors import NotHere, ServerUnavailable
from tests.servers.given import DRIVERS, alias_of, variable_of, with_driver
from tests.servers.keeping import (
    LOCALHOST,
    Binaries,
    Keeper,
    free_port,
    initialize,
    last_lines,
    make_folder,
)
from tests.servers.server import Origin, Server, connected

PORT_ATTEMPTS = 3
START_TIMEOUT = 60.0
LOOK_EVERY = 0.1
CONNECT_TIMEOUT = 5

FoundBinaries = TypeVar("FoundBinaries", bound=Binaries, covariant=True)


class Programs(Protocol[FoundBinaries]):
    """What a provider knows of a database's programs."""

    def binaries(self) -> FoundBinaries:
        """Find them; raise NotHere if they are missing."""

    def install(self) -> None:
        """Install them; raise NotHere where that cannot be done."""


def binaries_of(programs: Programs[FoundBinaries]) -> FoundBinaries:
    """Find a database's programs, and install them where they are missing."""
    try:
        return programs.binaries()
    except NotHere:
        programs.install()
        return programs.binaries()


class Provider(ABC):
    """Search, in this order: a given URL, a running server, binaries, packages."""

    name: ClassVar[str]
    server: ClassVar[type[Server]]
    packages: ClassVar[tuple[str, ...]]

    @property
    def places(self) -> tuple[Callable[[], Server], ...]:
        """List the searches to make when no URL was given."""
        return self.running, self.started, self.installed

    @property
    def way_out(self) -> str:
        """Tell a person how this database can be had."""
        return (
            f"Give a URL (--dburi {DRIVERS[self.name]}://..., {variable_of(self.name)}, "
            f"or setup.cfg [db] {self.name} = ...), or {self.package_way_out}"
        )

    @property
    def package_way_out(self) -> str:
        """Tell which packages bring this database."""
        return f"install its server (Debian: {' '.join(self.packages)}; as root the tests do it)"

    def given(self, url: str) -> Server:
        """Use the server that a person named, and no other."""
        try:
            if alias_of(url) != self.name:
                raise NotHere(f"it is for {alias_of(url)}")
            return self.at(with_driver(url))
        except (NotHere, ValueError) as error:
            raise self.unavailable(f"the URL given does not serve: {error}") from error

    @abstractmethod
    def at(self, url: URL) -> Server:
        """Use the server at a URL that is for this database."""

    @abstractmethod
    def running(self) -> Server:
        """Use the server that answers on its standard port."""

    @abstractmethod
    def started(self) -> Server:
        """Start a server from binaries on this machine."""

    @abstractmethod
    def installed(self) -> Server:
        """Install packages, then start a server."""

    def unavailable(self, why: str) -> ServerUnavailable:
        """Make the error that tells why there is no server, and the way out."""
        return ServerUnavailable(self.name, why, self.way_out)


class NetworkProvider(Provider):
    """Search for a database that is a server process behind a port."""

    user: ClassVar[str]
    port: ClassVar[int]
    database: ClassVar[str]
    folder_query: ClassVar[str]

    def at(self, url: URL) -> Server:
        return self._found(url, origin="given")

    def running(self) -> Server:
        try:
            return self._found(self._url_at(self.port), origin="running")
        except NotHere as missing:
            raise NotHere(f"none runs on {LOCALHOST}:{self.port} ({missing})") from missing

    def started(self) -> Server:
        return self.start(self.binaries(), origin="started")

    def installed(self) -> Server:
        self.install()
        return self.start(self.binaries(), origin="installed")

    @abstractmethod
    def binaries(self) -> Binaries:
        """Find the database's programs."""

    @abstractmethod
    def install(self) -> None:
        """Install the database's programs."""

    @abstractmethod
    def version_of(self, url: URL) -> str:
        """Ask for the server's version; refuse a server of another database."""

    def start(
        self,
        binaries: Binaries,
        *,
        origin: Origin,
        port: int | None = None,
        within: Path | None = None,
    ) -> Server:
        """Run these binaries in a temporary folder, on a free port if none is named."""
        folder = make_folder(self.name, user=binaries.user, within=within)
        try:
            initialize(binaries, folder)
            return self.serve(binaries, folder, origin=origin, port=port)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def serve(
        self, binaries: Binaries, folder: Path, *, origin: Origin, port: int | None = None
    ) -> Server:
        """Run these binaries on a folder that was made before."""
        # A free port may be taken by the time the server listens on it.
        for _ in range(PORT_ATTEMPTS):
            number = port or free_port()
            keeper = Keeper(binaries, folder, port=number)
            url = self._url_at(number)
            try:
                if self._answers(keeper, url):
                    return self._found(url, origin=origin, keeper=keeper)
            except BaseException:
                keeper.stop()
                raise
        raise NotHere(f"its server ended at once: {last_lines(folder)}")

    def _answers(self, keeper: Keeper, url: URL) -> bool:
        """Wait until the server answers; return False if it ended instead."""
        deadline = time.monotonic() + START_TIMEOUT
        while keeper.running:
            if self._is_ours(url, keeper.folder):
                return True
            if time.monotonic() > deadline:
                raise NotHere(f"its server does not answer: {last_lines(keeper.folder)}")
            time.sleep(LOOK_EVERY)
        keeper.end()
        return False

    def _is_ours(self, url: URL, folder: Path) -> bool:
        # Another server may have taken the port meanwhile: check whose data this server serves.
        try:
            return Path(ask(url, self.folder_query)).resolve() == (folder / "data").resolve()
        except NotHere:
            return False

    def _found(self, url: URL, *, origin: Origin, keeper: Keeper | None = None) -> Server:
        version = self.version_of(url)
        return self.server(
            database=self.name, url=url, origin=origin, version=version, keeper=keeper
        )

    def _url_at(self, port: int) -> URL:
        return URL.create(
            DRIVERS[self.name],
            username=self.user,
            host=LOCALHOST,
            port=port,
            database=self.database,
        )


def ask(url: URL, query: str) -> str:
    """Ask a server a question; any error means that there is no server for us."""
    try:
        with connected(url.update_query_dict({"connect_timeout": str(CONNECT_TIMEOUT)})) as to:
            return str(to.exec_driver_sql(query).scalar_one())
    # ImportError: the driver is missing. RuntimeError: PyMySQL misses cryptography.
    except (SQLAlchemyError, ImportError, RuntimeError, OSError) as error:
        reason = getattr(error, "orig", None) or error
        raise NotHere(str(reason).strip().partition("\n")[0]) from error
