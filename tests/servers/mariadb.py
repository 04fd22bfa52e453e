"""Find or start MariaDB."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.servers import debian
from tests.servers.errors import NotHere
from tests.servers.innodb import InnoDBBinaries, InnoDBProvider


@dataclass(frozen=True, kw_only=True)
class MariaDBBinaries(InnoDBBinaries):
    """Run mariadb-install-db, then mariadbd."""

    installer: str
    daemon: str

    def initialize(self, folder: Path) -> tuple[str, ...]:
        return (
            *(self.installer, "--no-defaults", "--skip-test-db", *self.place(folder)),
            # Debian's default lets root in through the socket only.
            "--auth-root-authentication-method=normal",
        )

    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        return (self.daemon, "--no-defaults", *self.served(folder, port=port))


class MariaDB(InnoDBProvider):
    """Search for a MariaDB server."""

    name = "mariadb"
    # Not mariadb-server: the cores have the same programs (mariadb-install-db calls one of
    # the client's), and no service that would be started on a port that may be taken.
    packages = ("mariadb-server-core", "mariadb-client-core")

    def binaries(self) -> MariaDBBinaries:
        installer = debian.which("mariadb-install-db")
        daemon = debian.which("mariadbd")
        if installer is None or daemon is None:
            raise NotHere("mariadb-install-db and mariadbd are not on this machine")
        return MariaDBBinaries(installer=installer, daemon=daemon)
