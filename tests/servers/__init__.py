"""Database servers for tests: found, or started, or installed and started.

    server = provide("mysql")
    url = server.create_database("mine")
    ...
    server.drop_database("mine")
    server.stop()

Each database is searched for in this order: a URL given (by the caller, the environment,
or setup.cfg), a server that answers on its standard port, binaries on the machine,
Debian's packages. A server that was started here is stopped here, also when this
process is killed; one that was found keeps running, without our databases.

``python -m tests.servers mysql`` holds a server open and prints its URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import make_url

from tests.servers.errors import ServerUnavailable
from tests.servers.given import DATABASES, alias_of, find_given
from tests.servers.mariadb import MariaDB
from tests.servers.mysql import MySQL
from tests.servers.postgresql import PostgreSQL
from tests.servers.provider import Provider
from tests.servers.server import Server
from tests.servers.sqlite import SQLite

__all__ = [
    "DATABASES",
    "PROVIDERS",
    "Server",
    "ServerUnavailable",
    "alias_of",
    "provide",
    "server_as_written",
]

PROVIDERS: dict[str, Provider] = {
    provider.name: provider for provider in (SQLite(), PostgreSQL(), MySQL(), MariaDB())
}


def provide(database: str, given: str | None = None) -> Server:
    """Find, start or install a server; raise ServerUnavailable if none can be had."""
    provider = PROVIDERS[database]
    url = given or find_given(database)
    return provider.given(url) if url else provider.search()


def server_as_written(written: Mapping[str, Any]) -> Server:
    """Read what :meth:`Server.written` wrote in another process; that one stops the server."""
    fields = {**written, "url": make_url(written["url"])}
    return PROVIDERS[written["database"]].server(**fields)
