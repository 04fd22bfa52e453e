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

from tests.servers.errors import ServerUnavailable
from tests.servers.given import DATABASES, alias_of
from tests.servers.search import PROVIDERS, provide, server_as_written
from tests.servers.server import Origin, Server

__all__ = [
    "DATABASES",
    "PROVIDERS",
    "Origin",
    "Server",
    "ServerUnavailable",
    "alias_of",
    "provide",
    "server_as_written",
]
