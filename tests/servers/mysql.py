"""Find or start MySQL.

Debian stable has no MySQL. The package of its unstable suite is unpacked with all its
libraries, the C library too, into a folder that git ignores, and runs there by its own
loader: nothing of it touches the system.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.servers import debian
from tests.servers.errors import NotHere
from tests.servers.given import REPOSITORY
from tests.servers.innodb import InnoDBBinaries, InnoDBProvider

UNPACKED = REPOSITORY / ".servers" / "mysql"


@dataclass(frozen=True, kw_only=True)
class MySQLBinaries(InnoDBBinaries):
    """Run one mysqld.

    Attributes:
        command: the program and its first arguments.
        layout: the options that tell it where its files are.
    """

    command: tuple[str, ...]
    layout: tuple[str, ...] = ()

    def initialize(self, folder: Path) -> tuple[str, ...]:
        return (*self._command, "--initialize-insecure", *self.place(folder))

    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        return (*self._command, "--mysqlx=OFF", *self.served(folder, port=port))

    @property
    def _command(self) -> tuple[str, ...]:
        return (*self.command, "--no-defaults", *self.layout)


class MySQL(InnoDBProvider):
    """Search for a MySQL server."""

    name = "mysql"
    packages = ("mysql-server-core",)

    package_way_out = (
        "install MySQL's own mysqld; as root on Debian the tests unpack {packages} from the suite "
        "sid into .servers/"
    )

    def binaries(self) -> MySQLBinaries:
        if UNPACKED.is_dir():
            return unpacked_binaries(UNPACKED)
        daemon = debian.which("mysqld")
        if daemon is None or is_mariadb(daemon):
            raise NotHere("mysqld is not on this machine")
        return MySQLBinaries(command=(daemon,))

    def install(self) -> None:
        debian.unpack_from_sid(*self.packages, folder=UNPACKED)


def is_mariadb(daemon: str) -> bool:
    """Tell whether this mysqld is MariaDB's, which keeps the name for old scripts."""
    answer = subprocess.run((daemon, "--version"), capture_output=True, text=True, check=False)
    return "mariadb" in answer.stdout.lower()


def unpacked_binaries(root: Path) -> MySQLBinaries:
    """Find what runs the unpacked mysqld."""
    usr, libraries = root / "usr", debian.unpacked_libraries(root)
    return MySQLBinaries(
        command=debian.unpacked_program(root, "mysqld"),
        layout=(
            f"--basedir={usr}",
            f"--lc-messages-dir={usr / 'share' / 'mysql'}",
            f"--plugin-dir={usr / 'lib' / 'mysql' / 'plugin'}",
            "--secure-file-priv=NULL",
        ),
        environment={"OPENSSL_MODULES": str(libraries / "ossl-modules")},
    )
