"""PgBouncer: a pooler before a PostgreSQL server, started for one test.

    with transaction_pooler(server_url) as url:
        create_engine(url)  # each transaction on whatever server connection is free

It is no database, so no provider: a test searches the machine for it, then Debian's packages.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import URL

from tests.servers import debian
from tests.servers.errors import NotHere
from tests.servers.keeping import LOCALHOST, Binaries, Keeper, free_port, last_lines, make_folder
from tests.servers.postgresql import unprivileged_user
from tests.servers.provider import LOOK_EVERY, PORT_ATTEMPTS, START_TIMEOUT, ask

PACKAGE = "pgbouncer"
CONFIGURATION = "pgbouncer.ini"


@dataclass(frozen=True, kw_only=True)
class PgBouncerBinaries(Binaries):
    """Run one program, which needs no data folder."""

    program: str

    def initialize(self, folder: Path) -> tuple[str, ...]:
        return (self.program, "--version")

    def serve(self, folder: Path, *, port: int) -> tuple[str, ...]:
        return (self.program, str(folder / CONFIGURATION))


@contextmanager
def transaction_pooler(server: URL) -> Iterator[URL]:
    """Run PgBouncer in transaction mode before a server; give the URL that goes through it.

    Raises:
        NotHere: there is no PgBouncer here, and none can be installed.
    """
    with pooler(server, mode="transaction") as url:
        yield url


@contextmanager
def pooler(server: URL, *, mode: str) -> Iterator[URL]:
    """Run PgBouncer in a mode of its own, as :func:`transaction_pooler` does."""
    keeper, url = start(binaries(), server, mode=mode)
    try:
        yield url
    finally:
        keeper.stop()


def binaries() -> PgBouncerBinaries:
    """Find the program, or install it."""
    if debian.which(PACKAGE) is None:
        debian.install(PACKAGE)
    program = debian.which(PACKAGE)
    if program is None:
        raise NotHere(f"{PACKAGE} is not on this machine")
    return PgBouncerBinaries(program=program, user=unprivileged_user())


def start(program: PgBouncerBinaries, server: URL, *, mode: str) -> tuple[Keeper, URL]:
    """Start it on a free port, which may be taken by the time that it listens."""
    folder = make_folder(PACKAGE, user=program.user)
    try:
        for _ in range(PORT_ATTEMPTS):
            port = free_port()
            write_configuration(folder, server, port=port, mode=mode, user=program.user)
            url = server.set(host=LOCALHOST, port=port)
            keeper = Keeper(program, folder, port=port)
            if answers(keeper, url):
                return keeper, url
        raise NotHere(f"{PACKAGE} ended at once: {last_lines(folder)}")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def write_configuration(
    folder: Path, server: URL, *, port: int, mode: str, user: str | None, **more: object
) -> None:
    """Write the settings, readable for its user only, since they hold the password.

    Args:
        more: further settings, or others in the place of these.
    """
    login = {"host": server.host or LOCALHOST, "port": server.port or 5432}
    login |= {"user": server.username or "postgres"}
    if server.password:  # an empty one is a syntax error
        login["password"] = server.password
    settings = {
        "listen_addr": LOCALHOST,
        "listen_port": port,
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": mode,
        "default_pool_size": 5,
        "ignore_startup_parameters": "extra_float_digits,options",
        **more,
    }
    words = " ".join(f"{name}={quoted(value)}" for name, value in login.items())
    lines = [f"{name} = {value}" for name, value in settings.items()]
    path = folder / CONFIGURATION
    path.touch(mode=0o600)
    path.write_text("\n".join(["[databases]", f"* = {words}", "[pgbouncer]", *lines, ""]))
    if user is not None and os.geteuid() == 0:
        shutil.chown(path, user=user)


def quoted(value: object) -> str:
    """Quote a value of a connection string."""
    return "'" + str(value).replace("'", "''") + "'"


def answers(keeper: Keeper, url: URL) -> bool:
    """Wait until the server answers; return False if it ended instead."""
    deadline = time.monotonic() + START_TIMEOUT
    while keeper.running:
        try:
            ask(url, "SELECT 1")
        except NotHere as silent:
            if time.monotonic() > deadline:
                keeper.end()
                raise NotHere(f"{PACKAGE} does not answer: {last_lines(keeper.folder)}") from silent
            time.sleep(LOOK_EVERY)
        else:
            return True
    keeper.end()
    return False
