"""A server that tests may use, and the databases that they create on it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal

from sqlalchemy import URL, Connection, NullPool, create_engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tests.servers.errors import NotHere
from tests.servers.keeping import Keeper

Origin = Literal["given", "running", "started", "installed"]

CONNECT_TIMEOUT = 5

# What the drivers say when the user may not create or drop a database: PostgreSQL's
# insufficient_privilege; ER_DBACCESS_DENIED, ER_TABLEACCESS_DENIED, ER_SPECIFIC_ACCESS_DENIED.
DENIED = {"42501", 1044, 1142, 1227}


@dataclass(frozen=True, kw_only=True)
class Server(ABC):
    """Create and drop databases on one server; stop it if it is ours.

    Attributes:
        database: one of :data:`tests.servers.DATABASES`.
        url: an administrative database, or the URL that was given, unchanged.
        origin: where the server was had from.
        version: the version that the server reports.
        keeper: the process that runs the server, if this process started it.
        names_query: asks for the names of the databases that begin with :prefix.
    """

    database: str
    url: URL
    origin: Origin
    version: str
    keeper: Keeper | None = None
    names_query: ClassVar[str] = ""

    def __str__(self) -> str:
        return f"{self.version} ({self.origin}) {self.url.render_as_string(hide_password=True)}"

    @property
    def stays(self) -> bool:
        """Tell whether the server outlives this process, so that we have to clean up."""
        return self.origin in ("given", "running")

    def written(self) -> dict[str, str]:
        """Write down in plain values what another process needs to use the server."""
        return {
            "database": self.database,
            "url": self.url.render_as_string(hide_password=False),
            "origin": self.origin,
            "version": self.version,
        }

    def create_database(self, name: str) -> URL:
        """Create an empty database; without the privilege, use the given one as it is."""
        try:
            self._create(name)
        except DBAPIError as error:
            if self.origin == "given" and self.url.database and is_denied(error):
                return self.url
            raise
        return self._url_of(name)

    def drop_database(self, name: str) -> None:
        """Drop a scratch database, with whatever is still connected to it."""
        if name in self.databases(prefix=name):
            self._drop(name)

    def drop_databases(self, *, prefix: str) -> None:
        """Drop every database whose name begins like this."""
        for name in self.databases(prefix=prefix):
            self._drop(name)

    def databases(self, *, prefix: str) -> Sequence[str]:
        """List the databases whose names begin like this."""
        with connected(self.url) as connection:
            return connection.execute(text(self.names_query), {"prefix": prefix}).scalars().all()

    def stop(self) -> None:
        """Stop the server and remove its folder, if this process started it."""
        if self.keeper is not None:
            self.keeper.stop()

    @abstractmethod
    def _create(self, name: str) -> None: ...

    @abstractmethod
    def _drop(self, name: str) -> None: ...

    def _url_of(self, name: str) -> URL:
        return self.url.set(database=name)


def is_denied(error: DBAPIError) -> bool:
    """Tell a missing privilege from every other error."""
    sqlstate = getattr(error.orig, "pgcode", None) or getattr(error.orig, "sqlstate", None)
    arguments = error.orig.args if error.orig else ()
    return sqlstate in DENIED or bool(arguments and arguments[0] in DENIED)


@contextmanager
def connected(url: URL) -> Iterator[Connection]:
    """Connect once, outside of any transaction."""
    engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        yield connection


def ask(url: URL, query: str) -> str:
    """Ask a server a question; any error means that there is no server for us."""
    try:
        with connected(url.update_query_dict({"connect_timeout": str(CONNECT_TIMEOUT)})) as to:
            return str(to.exec_driver_sql(query).scalar_one())
    # ImportError: the driver is missing. RuntimeError: PyMySQL misses cryptography.
    except (SQLAlchemyError, ImportError, RuntimeError, OSError) as error:
        reason = getattr(error, "orig", None) or error
        raise NotHere(str(reason).strip().partition("\n")[0]) from error


def says(url: URL, query: str, answer: str) -> bool:
    """Tell whether a server answers, and with this."""
    try:
        return ask(url, query) == answer
    except NotHere:
        return False


def quoted(connection: Connection, name: str) -> str:
    """Quote a database's name for this server."""
    return connection.dialect.identifier_preparer.quote_identifier(name)
