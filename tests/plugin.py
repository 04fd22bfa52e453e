"""A pytest plugin: every test with `db_url` runs on PostgreSQL, MySQL, MariaDB and SQLite.

    def test_a_claim_takes_the_oldest(db_url): ...          # once per database

    @pytest.mark.only_on("mysql", "mariadb")
    def test_gap_locks(db_url): ...                         # on these two

The process that the user started provides the servers once; workers of pytest-xdist get
their URLs and create scratch databases at first use. ``--db ALIAS`` chooses databases,
``--dburi URL`` names a server. A database that cannot be had is left out and named in the
report; with CI in the environment it ends the run.
"""

from __future__ import annotations

import gc
import itertools
import os
import secrets
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import pytest
from sqlalchemy import URL

from tests.servers import DATABASES, Server, ServerUnavailable, alias_of, provide, server_as_written
from tests.servers.sqlite import SQLiteServer, refuse_to_open
from tests.servers.sweeping import Sweeper
from tests.support import SQLITE

WORKER_INPUT = "sa_jobqueue"


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a test run has: its servers, and the beginning of its databases' names."""

    servers: Mapping[str, Server]
    prefix: str
    left_out: Sequence[ServerUnavailable] = ()

    def to_worker(self) -> dict[str, Any]:
        """Return plain values that tell a worker what it needs."""
        servers = [server.written() for server in self.servers.values()]
        return {"servers": servers, "prefix": self.prefix}

    @classmethod
    def in_worker(cls, written: Mapping[str, Any]) -> Run:
        """Read in a worker the values that the controller wrote."""
        servers = map(server_as_written, written["servers"])
        return cls(
            servers={server.database: server for server in servers}, prefix=written["prefix"]
        )


RUN = pytest.StashKey[Run]()

# The command line


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose databases and servers."""
    group = parser.getgroup("sa_jobqueue")
    group.addoption(
        "--db",
        action="append",
        choices=DATABASES,
        metavar="ALIAS",
        help=f"database to test, repeatable: {', '.join(DATABASES)} (default: all)",
    )
    group.addoption(
        "--dburi",
        action="append",
        default=[],
        metavar="URL",
        help="server to test, repeatable; chooses its database, too",
    )
    group.addoption(
        "--screenshots", action="store_true", help="write the pictures of docs/images anew"
    )
    group.addoption("--full", action="store_true", help="run the long variants of the tests")
    group.addoption(
        "--sqlite-begin",
        choices=("driver", "listener", "autocommit"),
        default="driver",
        help="who begins SQLite's transactions: Python's driver by itself, a listener of "
        "SQLAlchemy's, or the driver with autocommit=False (from Python 3.12 on)",
    )
    group.addoption(
        "--on-one",
        action="append",
        default=[],
        metavar="FOLDER",
        help="run each test beneath a folder on one database, chosen by its name; may be repeated",
    )
    group.addoption(
        "--by-turns",
        action="append",
        default=[],
        metavar="ALIAS,ALIAS",
        help="run a test that is for all of these databases on one of them, chosen by its name; "
        "the reverse order chooses the other; not with --full, and not tests under load",
    )


def chosen_databases(config: pytest.Config) -> tuple[str, ...]:
    """Name the databases of this run; once servers are provided, those that could be had."""
    run = config.stash.get(RUN, None)
    if run is not None:
        return tuple(run.servers)
    chosen = [*(config.getoption("db") or ()), *given_urls(config)] or DATABASES
    return tuple(database for database in DATABASES if database in chosen)


def given_urls(config: pytest.Config) -> dict[str, str]:
    """Read the URLs of the command line, by alias."""
    try:
        return {alias_of(url): url for url in config.getoption("dburi")}
    except ValueError as error:
        raise pytest.UsageError(f"--dburi: {error}") from error


# What makes a run of thousands of tests quicker


def pytest_configure(config: pytest.Config) -> None:
    """Have PyMySQL read no certificates: for each connection it reads all of the machine, in 40 ms.

    Processes that tests start inherit it.
    """
    os.environ.setdefault("SSL_CERT_FILE", os.devnull)
    SQLITE["begin"] = config.getoption("sqlite_begin")
    if SQLITE["begin"] == "autocommit" and sys.version_info < (3, 12):
        raise pytest.UsageError("--sqlite-begin autocommit needs Python 3.12, whose driver has it")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Keep the garbage collector from looking through all tests again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Keep the garbage collector from looking again at what the tests of a module have left."""
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


# Servers, for the whole run


def pytest_sessionstart(session: pytest.Session) -> None:
    """Provide the servers, if tests are going to run."""
    config = session.config
    if hasattr(config, "workerinput"):
        config.stash[RUN] = Run.in_worker(config.workerinput[WORKER_INPUT])
    elif not config.getoption("collectonly"):
        run = config.stash[RUN] = provide_servers(config)
        clean_up_after(run, config)
        refuse_gaps_in_ci(run)
    if RUN in config.stash:
        for server in config.stash[RUN].servers.values():
            if isinstance(server, SQLiteServer):
                refuse_to_open(server.folder)


def provide_servers(config: pytest.Config) -> Run:
    """Provide all chosen databases at once; starting one takes seconds."""
    databases, urls = chosen_databases(config), given_urls(config)
    with ThreadPoolExecutor(max_workers=len(databases)) as pool:
        found = list(
            pool.map(lambda database: provide_or_not(database, urls.get(database)), databases)
        )
    return Run(
        servers={server.database: server for server in found if isinstance(server, Server)},
        left_out=[error for error in found if isinstance(error, ServerUnavailable)],
        prefix=f"sa_jobqueue_test_{secrets.token_hex(4)}",
    )


def provide_or_not(database: str, given: str | None) -> Server | ServerUnavailable:
    """Return the error instead of raising it, since the other databases go on."""
    try:
        return provide(database, given)
    except ServerUnavailable as error:
        return error


def clean_up_after(run: Run, config: pytest.Config) -> None:
    """Stop what was started, and drop our databases from what was found."""
    for server in run.servers.values():
        config.add_cleanup(server.stop)
    if found := [server for server in run.servers.values() if server.stays]:
        config.add_cleanup(Sweeper(found, prefix=run.prefix).sweep)


def refuse_gaps_in_ci(run: Run) -> None:
    """End the run in CI if a database is missing: it would be green for nothing."""
    if run.left_out and os.environ.get("CI"):
        raise pytest.UsageError("; ".join(f"no server of {error}" for error in run.left_out))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the servers to a worker of pytest-xdist."""
    run = node.config.stash.get(RUN, None)
    if run is not None:
        node.workerinput[WORKER_INPUT] = run.to_worker()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Name the servers that are tested."""
    run = config.stash.get(RUN, None)
    if run is None:
        return []
    return [f"{database}: {server}" for database, server in run.servers.items()]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Name the databases left out at the end, where a reader looks."""
    run = config.stash.get(RUN, None)
    if run is not None and run.left_out:
        terminalreporter.section("databases left out", yellow=True)
        for error in run.left_out:
            terminalreporter.write_line(str(error))


# Tests, once per database


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that asks for a database once per database."""
    if "db_alias" in metafunc.fixturenames:
        # All of them, whatever the test's marker says: pytest puts tests with the same database
        # next to each other by its place in this list, and a module fills its tables once.
        chosen = chosen_databases(metafunc.config)
        metafunc.parametrize("db_alias", chosen, indirect=True, scope="session")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Deselect what is not for this run, and see that tests of a group stay together."""
    deselect(config, items)
    yield
    refuse_lost_groups(config, items)


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is not for this database or this run; a skip would look like a gap."""
    chosen: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        (chosen if belongs(item) else deselected).append(item)
    if deselected:
        items[:] = chosen
        config.hook.pytest_deselected(items=deselected)


def belongs(item: pytest.Item) -> bool:
    """Tell whether a test is for this run, and for the database that it was generated for."""
    if item.get_closest_marker("only_full") and not item.config.getoption("full"):
        return False
    callspec = getattr(item, "callspec", None)
    if callspec is None or "db_alias" not in callspec.params:
        return True
    if (
        item.get_closest_marker("driver_begins")
        and item.config.getoption("sqlite_begin") != "driver"
    ):
        return False
    return callspec.params["db_alias"] in databases_of(item, callspec.params["db_alias"])


def databases_of(item: pytest.Item, alias: str) -> list[str]:
    """Name the databases that a test runs on in this run.

    Args:
        alias: the database that the item was generated for.
    """
    marker = item.get_closest_marker("only_on")
    if marker is not None and (unknown := set(marker.args).difference(DATABASES)):
        raise pytest.UsageError(f"{item.nodeid}: only_on names no database: {', '.join(unknown)}")
    databases = list(DATABASES if marker is None else marker.args)
    for taking_turns in turns_of(item):
        turns = [name for name in taking_turns if name in databases]
        if len(turns) > 1:
            chosen = turns[crc32(name_without(alias, item).encode()) % len(turns)]
            databases = [name for name in databases if name == chosen or name not in turns]
    return databases


def turns_of(item: pytest.Item) -> Sequence[Sequence[str]]:
    """Name the databases that take turns: those of the test's marker, else of the command line."""
    if item.config.getoption("full"):
        return ()
    marker = item.get_closest_marker("by_turns")
    if marker is not None:
        return (marker.args,)
    if item.get_closest_marker("load"):
        return ()
    if any(item.nodeid.startswith(folder) for folder in item.config.getoption("on_one")):
        return (DATABASES,)
    return [turns.split(",") for turns in item.config.getoption("by_turns")]


def name_without(alias: str, item: Any) -> str:
    """Return a test's name without its database: the same on each."""
    parameters = "-".join(part for part in item.callspec.id.split("-") if part != alias)
    return f"{item.originalname}[{parameters}]"


def refuse_lost_groups(config: pytest.Config, items: list[pytest.Item]) -> None:
    """End the run if pytest-xdist would take the tests of a group apart.

    A worker's node ids end with the group. With pytest 9.2 pytest-xdist 3.8 left that out without a
    word, and each worker filled the large tables of a group for itself.
    """
    grouped = [item for item in items if item.get_closest_marker("xdist_group")]
    if config.getoption("loadgroup", False) and any(map(is_apart, grouped)):
        raise pytest.UsageError("pytest-xdist ignores xdist_group: use a pytest before 9.2")


def is_apart(item: pytest.Item) -> bool:
    """Tell whether a node id ends without a group."""
    return item.nodeid.rfind("@") < item.nodeid.rfind("]")


# A scratch database for each worker on each server


@dataclass(frozen=True, kw_only=True)
class Databases:
    """This worker's scratch databases, each created by its first use."""

    run: Run
    worker: str
    workers: int
    urls: dict[str, URL] = field(default_factory=dict)

    def url(self, alias: str) -> URL:
        if alias not in self.urls:
            name = f"{self.run.prefix}_{self.worker}"
            self.urls[alias] = self.create(self.run.servers[alias], name)
        return self.urls[alias]

    def create(self, server: Server, name: str) -> URL:
        """Create a scratch database; a database that others may use is for a single worker."""
        url = server.create_database(name)
        if url == server.url and self.workers > 1:
            raise ServerUnavailable(
                server.database,
                "the URL given may not create databases, and several workers would share its own",
                "Run without -n, or grant its user the right to create databases",
            )
        return url


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> Databases:
    """Give this worker's scratch databases."""
    about = getattr(request.config, "workerinput", {})
    return Databases(
        run=request.config.stash[RUN],
        worker=about.get("workerid", "main"),
        workers=about.get("workercount", 1),
    )


@pytest.fixture(scope="session")
def db_alias(request: pytest.FixtureRequest) -> str:
    """Name the database that the test runs on."""
    alias: str = request.param
    return alias


@pytest.fixture(scope="session")
def db_url(databases: Databases, db_alias: str) -> URL:
    """Give the URL of this worker's scratch database on the server that the test runs on."""
    return databases.url(db_alias)


@pytest.fixture
def fresh_database(databases: Databases, db_alias: str) -> Iterator[URL]:
    """Give the URL of a new and empty database, dropped after the test."""
    server = databases.run.servers[db_alias]
    name = f"{databases.run.prefix}_{databases.worker}_{next(NUMBERS)}"
    url = server.create_database(name)
    if url == server.url:
        pytest.skip(f"{db_alias}: the URL given may not create databases")
    yield url
    server.drop_database(name)


NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def full(request: pytest.FixtureRequest) -> bool:
    """Tell whether the long variants of the tests were asked for."""
    return bool(request.config.getoption("full"))
