"""Search for a server in place after place until one has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import make_url

from tests.servers.errors import NotHere
from tests.servers.given import find_given
from tests.servers.mariadb import MariaDB
from tests.servers.mysql import MySQL
from tests.servers.postgresql import PostgreSQL
from tests.servers.provider import Provider
from tests.servers.server import Server
from tests.servers.sqlite import SQLite

PROVIDERS: dict[str, Provider] = {
    provider.name: provider for provider in (SQLite(), PostgreSQL(), MySQL(), MariaDB())
}


def provide(database: str, given: str | None = None) -> Server:
    """Find, start or install a server; raise ServerUnavailable if none can be had."""
    provider = PROVIDERS[database]
    url = given or find_given(database)
    return provider.given(url) if url else search(provider)


def search(provider: Provider) -> Server:
    """Search every place of the provider, and collect the reasons why it has no server."""
    reasons = []
    for place in provider.places:
        try:
            return place()
        except NotHere as missing:
            reasons.append(str(missing))
    raise provider.unavailable("; ".join(reasons))


def server_as_written(written: Mapping[str, Any]) -> Server:
    """Read what :meth:`Server.written` wrote in another process; that one stops the server."""
    fields = {**written, "url": make_url(written["url"])}
    return PROVIDERS[written["database"]].server(**fields)
