"""A pytest plugin: every test that asks for a database runs on every engine.

    def test_a_claim_takes_the_oldest(db_url): ...          # once per engine

    @pytest.mark.only_on("mysql", "mariadb")
    def test_gap_locks(db_url): ...                         # on these two

Servers are provided once, by the process that the user started; workers of pytest-xdist
get their URLs and create databases of their own, at first use. ``--db ALIAS`` chooses
engines, ``--dburi URL`` names a server. An engine that cannot be had is left out, and the
run says so; with CI in the environment it ends the run.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import URL, make_url

from tests.servers import (
    ENGINES,
    Server,
    ServerUnavailable,
    alias_of,
    provide,
    server_as_written,
)
from tests.servers.sweeping import Sweeper

WORKER_INPUT = "sa_jobqueue"


@dataclass(frozen=True, kw_only=True)
class Run:
    """What one test run has: its servers, and the name that its databases begin with."""

    servers: Mapping[str, Server]
    prefix: str
    left_out: Sequence[ServerUnavailable] = ()

    def to_worker(self) -> dict[str, Any]:
        """Write down for a worker what it needs, in plain values."""
        servers = [server.written() for server in self.servers.values()]
        return {"servers": servers, "prefix": self.prefix}

    @classmethod
    def in_worker(cls, written: Mapping[str, Any]) -> Run:
        """Read in a worker what the controller wrote down."""
        servers = map(server_as_written, written["servers"])
        return cls(servers={server.engine: server for server in servers}, prefix=written["prefix"])


RUN = pytest.StashKey[Run]()


# The command line


#: The engines of --on-two: one within the process, and one server.
TWO = ("sqlite", "mysql")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose engines and servers."""
    group = parser.getgroup("sa_jobqueue")
    group.addoption(
        "--db",
        action="append",
        choices=ENGINES,
        metavar="ALIAS",
        help=f"engine to test, repeatable: {', '.join(ENGINES)} (default: all)",
    )
    group.addoption(
        "--dburi",
        action="append",
        default=[],
        metavar="URL",
        help="server to test, repeatable; its engine is chosen, too",
    )
    group.addoption("--full", action="store_true", help="run the long variants of the tests")
    group.addoption(
        "--on-two",
        action="append",
        default=[],
        metavar="FOLDER",
        help="run the tests beneath a folder on two engines alone; may be repeated",
    )


def chosen_engines(config: pytest.Config) -> tuple[str, ...]:
    """Name the engines of this run; once servers are provided, those that could be had."""
    run = config.stash.get(RUN, None)
    if run is not None:
        return tuple(run.servers)
    chosen = [*(config.getoption("db") or ()), *given_urls(config)] or ENGINES
    return tuple(engine for engine in ENGINES if engine in chosen)


def given_urls(config: pytest.Config) -> dict[str, str]:
    """Read the URLs of the command line, by alias."""
    try:
        return {alias_of(url): url for url in config.getoption("dburi")}
    except ValueError as error:
        raise pytest.UsageError(f"--dburi: {error}") from error


# Servers, for the whole run


def pytest_sessionstart(session: pytest.Session) -> None:
    """Have the servers, if tests are going to run."""
    config = session.config
    if hasattr(config, "workerinput"):
        config.stash[RUN] = Run.in_worker(config.workerinput[WORKER_INPUT])
    elif not config.getoption("collectonly"):
        run = config.stash[RUN] = provide_servers(config)
        clean_up_after(run, config)
        refuse_gaps_in_ci(run)


def provide_servers(config: pytest.Config) -> Run:
    """Provide all chosen engines at once; starting one takes seconds."""
    engines, urls = chosen_engines(config), given_urls(config)
    with ThreadPoolExecutor(max_workers=len(engines)) as pool:
        found = list(pool.map(lambda engine: provide_or_not(engine, urls.get(engine)), engines))
    return Run(
        servers={server.engine: server for server in found if isinstance(server, Server)},
        left_out=[error for error in found if isinstance(error, ServerUnavailable)],
        prefix=f"sa_jobqueue_test_{secrets.token_hex(4)}",
    )


def provide_or_not(engine: str, given: str | None) -> Server | ServerUnavailable:
    """Return the error instead of raising it: other engines go on."""
    try:
        return provide(engine, given)
    except ServerUnavailable as error:
        return error


def clean_up_after(run: Run, config: pytest.Config) -> None:
    """Stop what was started, and drop our databases from what was found."""
    for server in run.servers.values():
        config.add_cleanup(server.stop)
    if found := [server for server in run.servers.values() if server.stays]:
        config.add_cleanup(Sweeper(found, prefix=run.prefix).sweep)


def refuse_gaps_in_ci(run: Run) -> None:
    """End the run in CI if an engine is missing: it would be green for nothing."""
    if run.left_out and os.environ.get("CI"):
        raise pytest.UsageError("; ".join(f"no server of {error}" for error in run.left_out))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the servers to a worker of pytest-xdist."""
    run = node.config.stash.get(RUN, None)
    if run is not None:
        node.workerinput[WORKER_INPUT] = run.to_worker()


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say which servers are tested, and which engines are left out."""
    run = config.stash.get(RUN, None)
    if run is None:
        return []
    tested = [f"{engine}: {server}" for engine, server in run.servers.items()]
    return [*tested, *(f"left out: {error}" for error in run.left_out)]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say it again where it is read."""
    run = config.stash.get(RUN, None)
    if run is not None and run.left_out:
        terminalreporter.section("engines left out", yellow=True)
        for error in run.left_out:
            terminalreporter.write_line(str(error))


# Tests, once per engine


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run whatever asks for a database once per engine."""
    if "db_alias" in metafunc.fixturenames:
        engines = chosen_engines(metafunc.config)
        metafunc.parametrize("db_alias", engines, indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is not for its engine or for this run: a skip would look like a gap."""
    deselected = [item for item in items if not belongs(item)]
    if deselected:
        items[:] = [item for item in items if belongs(item)]
        config.hook.pytest_deselected(items=deselected)


def belongs(item: pytest.Item) -> bool:
    """Tell whether a test is for this run, and for the engine that it was generated for."""
    if item.get_closest_marker("only_full") and not item.config.getoption("full"):
        return False
    marker = item.get_closest_marker("only_on")
    callspec = getattr(item, "callspec", None)
    if callspec is None or "db_alias" not in callspec.params:
        return True
    on_two = any(item.nodeid.startswith(folder) for folder in item.config.getoption("on_two"))
    if on_two and callspec.params["db_alias"] not in TWO:
        return False
    if marker is not None and (unknown := set(marker.args).difference(ENGINES)):
        raise pytest.UsageError(f"{item.nodeid}: only_on names no engine: {', '.join(unknown)}")
    # Without any engine pytest generates one test that it would skip.
    return callspec.params["db_alias"] in (ENGINES if marker is None else marker.args)


# Databases, one per engine and worker


@dataclass(frozen=True, kw_only=True)
class Databases(Mapping[str, str]):
    """Create this worker's database of an engine when it is first asked for."""

    run: Run
    worker: str
    workers: int
    urls: dict[str, str] = field(default_factory=dict)

    def __getitem__(self, alias: str) -> str:
        if alias not in self.urls:
            url = self.create(self.run.servers[alias], f"{self.run.prefix}_{self.worker}")
            self.urls[alias] = url.render_as_string(hide_password=False)
        return self.urls[alias]

    def __iter__(self) -> Iterator[str]:
        return iter(self.run.servers)

    def __len__(self) -> int:
        return len(self.run.servers)

    def create(self, server: Server, name: str) -> URL:
        """Create a database; one that cannot be ours alone is for a single worker."""
        url = server.create_database(name)
        if url == server.url and self.workers > 1:
            raise ServerUnavailable(
                server.engine,
                "the URL given may not create databases, and several workers would share its own",
                "Run without -n, or grant its user the right to create databases",
            )
        return url


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> Databases:
    """Map each engine's alias to the URL of this worker's database, as a string."""
    about = getattr(request.config, "workerinput", {})
    return Databases(
        run=request.config.stash[RUN],
        worker=about.get("workerid", "main"),
        workers=about.get("workercount", 1),
    )


@pytest.fixture(scope="session")
def db_alias(request: pytest.FixtureRequest) -> str:
    """Name the engine that the test runs on."""
    alias: str = request.param
    return alias


@pytest.fixture(scope="session")
def db_url(databases: Databases, db_alias: str) -> URL:
    """Give the URL of this worker's database on the test's engine."""
    return make_url(databases[db_alias])


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
