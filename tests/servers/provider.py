"""Where a server may be had; the subclass of each database holds what differs."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import URL

from tests.servers import debian
from tests.servers.errors import NotHere, ServerUnavailable
from tests.servers.given import DRIVERS, alias_of, variable_of, with_driver
from tests.servers.keeping import LOCALHOST, Keeper, initialize, make_folder, serve
from tests.servers.server import Origin, Server, ask


class Provider(ABC):
    """Search, in this order: a given URL, a running server, binaries, packages."""

    name: ClassVar[str]
    server: ClassVar[type[Server]]
    packages: ClassVar[tuple[str, ...]]
    package_way_out = "install its server (Debian: {packages}; as root the tests do it)"

    def search(self) -> Server:
        """Search every place, and collect the reasons why it has no server."""
        reasons = []
        for place in self.places():
            try:
                return place()
            except NotHere as missing:
                reasons.append(str(missing))
        raise self.unavailable("; ".join(reasons))

    def given(self, url: str) -> Server:
        """Use the server that a person named, and no other."""
        try:
            if alias_of(url) != self.name:
                raise NotHere(f"it is for {alias_of(url)}")
            return self.at(with_driver(url))
        except (NotHere, ValueError) as error:
            raise self.unavailable(f"the URL given does not serve: {error}") from error

    @abstractmethod
    def places(self) -> Iterable[Callable[[], Server]]:
        """List the searches to make when no URL was given."""

    def at(self, url: URL) -> Server:
        """Use the server at a URL that is for this database."""
        return self.found(url, origin="given")

    @abstractmethod
    def version_of(self, url: URL) -> str:
        """Ask for the server's version; refuse a server of another database."""

    def found(self, url: URL, *, origin: Origin, keeper: Keeper | None = None) -> Server:
        """Return the server at a URL; raise NotHere if it is another database's."""
        version = self.version_of(url)
        return self.server(
            database=self.name, url=url, origin=origin, version=version, keeper=keeper
        )

    def unavailable(self, why: str) -> ServerUnavailable:
        """Make the error that tells why there is no server, and the way out."""
        packages = self.package_way_out.format(packages=" ".join(self.packages))
        way_out = (
            f"Give a URL (--dburi {DRIVERS[self.name]}://..., {variable_of(self.name)}, "
            f"or setup.cfg [db] {self.name} = ...), or {packages}"
        )
        return ServerUnavailable(self.name, why, way_out)


class NetworkProvider(Provider):
    """Search for a database that is a server process behind a port."""

    user: ClassVar[str]
    port: ClassVar[int]
    database: ClassVar[str]
    folder_query: ClassVar[str]

    def places(self) -> Iterable[Callable[[], Server]]:
        return self.running, self.started, self.installed

    def running(self) -> Server:
        """Use the server that answers on its standard port."""
        try:
            return self.found(self.url_at(self.port), origin="running")
        except NotHere as missing:
            raise NotHere(f"none runs on {LOCALHOST}:{self.port} ({missing})") from missing

    def started(self) -> Server:
        """Start a server from binaries on this machine."""
        return self._start(origin="started")

    def installed(self) -> Server:
        """Install packages, then start a server."""
        self.install()
        return self._start(origin="installed")

    @abstractmethod
    def binaries(self) -> Any:
        """Find the database's programs; raise NotHere if they are missing."""

    def install(self) -> None:
        """Install the database's programs; raise NotHere where that cannot be done."""
        debian.install(*self.packages)

    def programs(self) -> Any:
        """Find the database's programs, and install them where they are missing."""
        try:
            return self.binaries()
        except NotHere:
            self.install()
            return self.binaries()

    def url_at(self, port: int) -> URL:
        """Return the way to a server of this machine."""
        return URL.create(
            DRIVERS[self.name],
            username=self.user,
            host=LOCALHOST,
            port=port,
            database=self.database,
        )

    def _start(self, *, origin: Origin) -> Server:
        """Run the programs in a temporary folder, on a free port."""
        binaries = self.binaries()
        folder = make_folder(self.name, user=binaries.user)
        try:
            initialize(binaries, folder)
            keeper, port = serve(binaries, folder, lambda port: self._is_ours(port, folder))
            return self.found(self.url_at(port), origin=origin, keeper=keeper)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise

    def _is_ours(self, port: int, folder: Path) -> bool:
        # Another server may have taken the port meanwhile: check whose data this server serves.
        try:
            served = ask(self.url_at(port), self.folder_query)
        except NotHere:
            return False
        return Path(served).resolve() == (folder / "data").resolve()
