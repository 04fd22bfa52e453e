"""PgBouncer: a pooler before a PostgreSQL server, started for one test.

    with transaction_pooler(server_url) as url:
        create_engine(url)  # each transaction on whatever server connection is free

It is no database, so no provider: a test searches the machine for it, then Debian's packages.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sqlalchemy import URL

from tests.servers import debian
from tests.servers.keeping import LOCALHOST, Binaries, make_folder, serve
from tests.servers.postgresql import unprivileged_user
from tests.servers.server import says

PACKAGE = "pgbouncer"


@dataclass(frozen=True, kw_only=True)
class PgBouncerBinaries(Binaries):
    """Run PgBouncer before a server.

    Attributes:
        command: the program, and what comes before it.
        server: an URL of the server, whatever database it names.
        settings: further settings, or others in the place of ours.
    """

    command: tuple[str, ...]
    server: URL
    settings: Mapping[str, object] = field(default_factory=dict)

    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        """Write the settings, readable for its user only, since they hold the password."""
        login = {"host": self.server.host or LOCALHOST, "port": self.server.port or 5432}
        login |= {"user": self.server.username or "postgres"}
        if self.server.password:  # an empty one is a syntax error
            login["password"] = self.server.password
        settings = {
            "listen_addr": LOCALHOST,
            "listen_port": port,
            "unix_socket_dir": "",
            "pidfile": folder / self.pid_file,
            "auth_type": "any",
            "default_pool_size": 5,
            "ignore_startup_parameters": "extra_float_digits,options",
            **self.settings,
        }
        words = " ".join(f"{name}={quoted(value)}" for name, value in login.items())
        lines = [f"{name} = {value}" for name, value in settings.items()]
        path = folder / "pgbouncer.ini"
        path.touch(mode=0o600)
        path.write_text("\n".join(["[databases]", f"* = {words}", "[pgbouncer]", *lines, ""]))
        if self.user is not None and os.geteuid() == 0:
            shutil.chown(path, user=self.user)
        return (*self.command, str(path))


def quoted(value: object) -> str:
    """Quote a value of a connection string."""
    return "'" + str(value).replace("'", "''") + "'"


@contextmanager
def pooler(server: URL, *, mode: str) -> Iterator[URL]:
    """Run PgBouncer in a mode before a server; give the URL that goes through it.

    Raises:
        NotHere: there is no PgBouncer here, and none can be installed.
    """
    binaries = PgBouncerBinaries(
        command=(debian.find(PACKAGE, PACKAGE),),
        server=server,
        settings={"pool_mode": mode},
        user=unprivileged_user(),
    )
    folder = make_folder(PACKAGE, user=binaries.user)
    try:
        keeper, port = serve(binaries, folder, lambda port: says(at(server, port), "SELECT 1", "1"))
        try:
            yield at(server, port)
        finally:
            keeper.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


transaction_pooler = partial(pooler, mode="transaction")


def at(server: URL, port: int) -> URL:
    """Return the way to a server's databases through PgBouncer on a port."""
    return server.set(host=LOCALHOST, port=port)
