"""The databases of a worker: one, or several by their names.

::

    Worker({"eu": engine_of_eu, "us": engine_of_us}, queue).run()

Each database has an Owner, connections, wake-ups, a heartbeat and chores of its own. With several,
each also has a thread, which waits alone for a database that is away, as long as it takes. A
function instead of the mapping is asked now and then: new names are taken in, and a name that is
gone is left: nothing is claimed there any more, and what is in hand is finished.

Records of the log tell the database: their texts begin with its name, and they have it as an extra
field.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import partial
from inspect import isroutine
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import QueuePool, StaticPool

from ..databases import database_of, database_of_engine
from ..databases.connections import SharedConnections
from ..databases.watched_connection import WatchedConnection
from ..errors import ArgumentError
from ..owners.owner import Owner
from ..process import Background, Flag, Runtime
from ..sessions.transactions import connected, routed_to_writes
from ..sessions.writer import is_sharded
from ..wakeups import Lines, Wakeups
from .chores import Heartbeat, Reaper, chores_beside
from .crew import INTERRUPTION, Crew, Loop
from .deadlines import Deadlines
from .handlers import Calls
from .lanes import Lane
from .named import records_named
from .transactions import (
    HAS_NOT_BEGUN,
    OwnerName,
    Patience,
    Pauses,
    Stopped,
    Transactions,
    cause_of,
)
from .turns import Turns

log = logging.getLogger("sa_jobqueue.worker")

#: The pause between two calls of a function that tells the databases.
ASK_EVERY = timedelta(seconds=30)


class Site:
    """One database of a worker: how it is written to, and who claims there.

    Args:
        sites: all databases of the worker.
        given: an Engine or a sessionmaker.
        name: None: the worker has only this one.

    Attributes:
        leaves: nothing is claimed any more.

    Raises:
        ArgumentError: the worker cannot use such sessions.
    """

    def __init__(self, sites: Sites, given: Any, name: str | None = None) -> None:
        self.sites, self.name, self.lanes = sites, name, sites.worker.lanes
        open_session = mapper = None
        if isinstance(given, sessionmaker):
            open_session = partial(given, expire_on_commit=False)
            mapper = self.lanes[0].mapping.mapper
            given = engine_of(open_session, self.lanes)
        self.engine: Engine = given
        self.transactions = Transactions(
            given,
            sites.runtime,
            sites.stopping,
            open_session,
            mapper,
            open_session or sites.calls.plain_sessions(given),
            sites.patience,
        )
        self.owner_name = OwnerName(sites.owner, self.transactions, sites.show_owner, sites.locks)
        self.leaves = False
        self.thread: Background | None = None
        self._turns: Turns | None = None

    @property
    def key(self) -> Any:
        """What two names for one database have in common."""
        schemas = self.engine.get_execution_options().get("schema_translate_map") or {}
        return self.engine.pool, frozenset(schemas.items())

    def is_like(self, other: Site) -> bool:
        """Tell whether a function has told this database anew, perhaps by another engine."""
        mine, its = self.engine, other.engine
        options = mine.get_execution_options() == its.get_execution_options()
        return options and (mine.pool is its.pool or mine.url == its.url)

    @property
    def trouble(self) -> str | None:
        """Why nothing can be claimed now, or None."""
        return self.transactions.trouble or (None if self._turns is None else self._turns.refusal)

    @contextmanager
    def opened(self, crew: Crew) -> Iterator[Loop]:
        """Hold an Owner, and have renewals, wake-ups and chores; return the loop of the turns."""
        sites, worker = self.sites, self.sites.worker
        with self.owner_name.for_the_run(), ExitStack() as stack:
            alone = self.transactions.patiently(self._prepare_connections)
            crew.alone = alone
            shows = worker.on_outcome is not None
            turns = Turns(self.lanes, self.owner_name, sites.calls, shows=shows)
            self._turns = turns
            interval = worker.interval.total_seconds()
            loop = Loop(self, turns, crew.condition(), worker.poll, interval)
            if not (worker.drain or interval):
                loop.wakeups = Wakeups(
                    self.engine,
                    database_of_engine(self.engine),
                    sites.lines,
                    [lane.queue for lane in self.lanes],
                    partial(crew.wake, loop),
                    runtime=sites.runtime,
                    poll=worker.poll,
                    shared=not alone,
                )
            self.transactions.give_way = partial(crew.give_way, loop)
            heartbeat = Heartbeat(crew, loop)
            self.transactions.wait_for_renewal = heartbeat.wait_for_renewal
            if not alone:
                heartbeat.begin(stack)
            if loop.wakeups is not None:
                stack.enter_context(loop.wakeups)
            stack.callback(self.transactions.give_back)
            loop.chores += [Reaper(crew, loop, self.lanes), *chores_beside(crew, loop)]
            for chore in loop.chores:
                chore.begin(stack)
            yield loop

    def connect_and_check(self, check: Callable[[Connection], None]) -> None:
        """Call `check` with a connection; wait for a server that is away, if it is the only one."""

        def once() -> None:
            with connected(self.engine) as connection:
                check(connection)

        try:
            self.transactions.patiently(once, waits=not self.sites.several)
        except Exception as error:
            if not (self.sites.several and self.transactions.is_missing(error)):
                raise
            log.warning("the database is away, and not checked: %s", cause_of(error))

    def _prepare_connections(self) -> bool:
        """Look at the database and the pool; tell whether this thread has to do everything.

        On a database in memory, other threads would not see the database.
        """
        with connected(self.engine) as connection:
            database = database_of(connection)
            alone = not database.seen_by_others(connection)
            self.sites.deadlines.never_below(database.lock_timeout(connection))
            has_spare = self._check_pool(alone=alone)
            # Behind a pooler a limit of the session would be another's. On an AUTOCOMMIT engine
            # each turn sets the level of its transaction.
            is_shared = database.may_wait_without_limit and database.through_pooler(connection)
            opened, mapper = self.transactions.open_session, self.transactions.mapper
            self.transactions.keeps = (
                has_spare
                and not is_shared
                and not database.in_autocommit(connection)
                and (opened is None or may_be_bound(opened, connection, mapper))
            )
        return alone

    def _check_pool(self, *, alone: bool) -> bool:
        """Refuse more handlers than connections; tell whether one may be kept beside theirs.

        Other pools than a QueuePool may give a connection that belongs to one thread.

        Raises:
            ArgumentError: it tells what to change.
        """
        sites, worker, pool = self.sites, self.sites.worker, self.engine.pool
        parts = [part for lane in self.lanes for part in lane.parts]
        one = worker.concurrency == 1 and not sites.several
        if not one and (alone or isinstance(pool, StaticPool)):
            raise ArgumentError(
                "a database in memory has one connection, and concurrency= needs more, as several "
                "databases do: use a file, or a database server; a StaticPool gives all threads "
                "one connection: leave out poolclass="
            )
        if alone:
            if not sites.calls.keeps_timeouts and any(part.timeout for part in parts):
                raise ArgumentError(
                    "on a database in memory the worker has one thread, which calls the handlers "
                    "and cannot notice their timeout=: use a file, or a database server"
                )
            return False
        most, needed = math.inf, worker.concurrency + 2
        if isinstance(pool, StaticPool):
            most = 1
        elif isinstance(pool, QueuePool) and pool._max_overflow >= 0:
            most = pool.size() + pool._max_overflow
        if most < needed and any(part.transactional for part in parts):
            raise ArgumentError(
                f"{worker.concurrency} transactional handlers at once and the worker itself need "
                f"up to {needed} connections, and the engine's pool has {most}: give "
                "create_engine() a larger pool_size="
            )
        users = sum(site.engine.pool is pool for site in sites.found)
        return isinstance(pool, QueuePool) and most >= needed and users == 1


class Sites:
    """The databases of a worker: with several, each has a thread of its own.

    Args:
        worker: whose options count.
        calls: how handlers are called.
        notify: wakes a thread that does the turns of a loop.
        within: returns the Engine or sessionmaker within what the user has given for a database.

    Attributes:
        asks: a function tells the databases.
        several: each database has a thread of its own.
        found: the databases where the worker claims.
        locks: the connections of the Owners' locks: those of one pool share one, as schemas do.
        lines: the connections of wake-ups, likewise.
        deadlines: of this run.

    Raises:
        ArgumentError: it tells what to give instead.
    """

    deadlines: Deadlines

    def __init__(
        self,
        worker: Any,
        calls: Calls,
        runtime: Runtime,
        stopping: Flag,
        notify: Callable[[Loop], None],
        within: Callable[[Any], Any],
    ) -> None:
        self.worker, self.calls, self.runtime, self.stopping = worker, calls, runtime, stopping
        self.notify, self._within, self._given = notify, within, worker.engine
        self.owner = worker.owner
        self.locks: SharedConnections[WatchedConnection] = SharedConnections()
        self.lines: Lines = SharedConnections()
        self._left: list[Site] = []
        self.asks = isroutine(self._given) or isinstance(self._given, partial)
        if isinstance(self._given, Mapping) and not self._given:
            raise ArgumentError(
                "the mapping of databases is empty: name one, or give a function that returns the "
                "mapping, which is asked every 30 seconds"
            )
        self.several = self.asks or (isinstance(self._given, Mapping) and len(self._given) > 1)
        if self.several and isinstance(self.owner, Owner):
            raise ArgumentError(
                "an Owner is of one database, and this worker has several: leave out owner=, and "
                "it opens one in each; or give a plain name, which is used in all"
            )
        endless = self.several and not worker.drain
        self.patience = Patience(timedelta.max) if endless else Patience()
        self._is_told = not self.asks
        self.found = self._sites_of(self._given) if self._is_told else []

    def _sites_of(self, told: Any) -> list[Site]:
        """Return the databases that the user has told.

        Raises:
            ArgumentError: two names for one database, or something that is no database.
        """
        if not isinstance(told, Mapping):
            if self.asks:
                raise ArgumentError(
                    f"a function that tells a worker's databases returns a mapping of their names "
                    f"to engines, not {told!r}"
                )
            return [Site(self, self._within(told))]
        seen: dict[Any, Site] = {}
        for name, given in told.items():
            if not isinstance(name, str) or not name:
                raise ArgumentError(f"the name of a database is a str, not empty, not {name!r}")
            site = Site(self, self._within(given), name)
            if (other := seen.setdefault(site.key, site)) is not site:
                raise ArgumentError(
                    f"{other.name!r} and {name!r} are one database: leave out one of these names, "
                    "or give engines that differ in their schema_translate_map"
                )
        return list(seen.values())

    def show_owner(self, owner: Any) -> None:
        """Show the owner of the only database as that of the worker."""
        if not self.several:
            self.worker.owner = owner

    @property
    def trouble(self) -> str | None:
        """Why the worker cannot claim in some of its databases now; None: it can in all."""
        if not self.several:
            return self.found[0].transactions.trouble
        if not self._is_told:
            return HAS_NOT_BEGUN
        found = ((site.name, site.trouble) for site in self.found)
        return "; ".join(f"{name}: {trouble}" for name, trouble in found if trouble) or None

    def check(self, check: Callable[[Connection], None]) -> None:
        """Call `check` with a connection of each database; wait for one, but for none of several.

        Raises:
            Exception: as for :meth:`Worker.check_database`.
        """
        self._ask_first()
        for site in self.found:
            with records_named(site.name):
                site.connect_and_check(check)

    def work(self, crew: Crew) -> None:
        """Work in all databases until the run ends."""
        self._ask_first()
        self.patience.end_at = math.inf
        if not self.several:
            (site,) = self.found
            self.deadlines.watch(site.engine)
            with records_named(site.name), site.opened(crew) as loop:
                crew.work([loop])
            return
        self._take_in(crew, self.found)
        crew.end_empty_drain()
        over = self.runtime.flag()
        asking = self.runtime.start(partial(self._ask, crew, over), name="sa_jobqueue databases")
        try:
            crew.work()
        finally:
            over.set()
            until = max(time.monotonic(), crew.until) + INTERRUPTION.total_seconds()
            for thread in (asking, *(site.thread for site in (*self.found, *self._left))):
                if thread is not None:
                    thread.join(max(until - time.monotonic(), 0.0))

    def _ask(self, crew: Crew, over: Flag) -> None:
        """Ask a function for the databases, at intervals, until the run is over."""
        while self.asks and not over.wait(ASK_EVERY.total_seconds()):
            try:
                self._change_to(self._sites_of(self._given()), crew)
            except Exception as error:
                log.error("the databases are not told, and stay: %s", error, exc_info=error)

    def _change_to(self, told: Sequence[Site], crew: Crew) -> None:
        """Take in the new databases, and leave those that are gone."""
        gone = {site.name: site for site in self.found}
        stay: list[Site] = []
        new: list[Site] = []
        for site in told:
            old = gone.get(site.name)
            if old is not None and old.is_like(site):
                stay.append(gone.pop(site.name))
            else:
                new.append(site)
        self.found = [*stay, *new]
        self._take_in(crew, new)
        for site in gone.values():
            log.info("%s is gone: the worker finishes what it holds there", site.name)
            site.leaves = True
        self._left = [site for site in (*self._left, *gone.values()) if site.thread is not None]

    def _ask_first(self) -> None:
        if self.asks:
            self.found, self._is_told = self._sites_of(self._given()), True

    def _take_in(self, crew: Crew, sites: Sequence[Site]) -> None:
        with crew.lock:
            crew.awaited += len(sites)
        for site in sites:
            self.deadlines.watch(site.engine)
            work = partial(records_named(site.name)(self._work_in), site, crew)
            site.thread = self.runtime.start(work, name=f"sa_jobqueue {site.name}")

    def _work_in(self, site: Site, crew: Crew) -> None:
        """Work in a database until it leaves or the run ends; if it fails to begin, try again."""
        pauses, has_begun = Pauses(1.0, 60.0, spread=0.0), False
        while not (has_begun or crew.ending or site.leaves):
            try:
                with site.opened(crew) as loop:
                    has_begun = True
                    crew.work_apart(loop)
            except Stopped:
                break
            except BaseException as error:
                mistaken = isinstance(error, ArgumentError) and not self.asks
                if mistaken or not (isinstance(error, Exception) and self.patience.is_endless):
                    error.add_note(f"The database is {site.name!r}.")
                    crew.end_by(error)
                    break
                site.transactions.trouble = str(cause_of(error))
                log.error("the worker cannot work here, and tries again: %s", cause_of(error))
                self.stopping.wait(pauses.next())
        if not has_begun:
            with crew.lock:
                crew.awaited -= 1
        crew.end_empty_drain()
        site.thread = None


def engine_of(open_session: Callable[[], Session], lanes: Sequence[Lane[Any]]) -> Engine:
    """Return the engine that a sessionmaker's sessions write the class of the first lane with.

    Raises:
        ArgumentError: it tells which sessions to give instead: these are bound to a connection or
            to nothing, or commit in two phases, and a handler is transactional.
    """
    mapping = lanes[0].mapping
    with open_session() as session:
        if is_sharded(session):
            raise ArgumentError(
                "a worker has a lock and wake-ups on each database, and a ShardedSession is no "
                'database: give the engines of its shards, as in Worker({"eu": engine, ..}, queue)'
            )
        try:
            bind = session.get_bind(**routed_to_writes(mapping.mapper))
        except UnboundExecutionError as error:
            raise ArgumentError(
                f"this sessionmaker knows no engine for {mapping}: bind it to an Engine, as in "
                "sessionmaker(engine)"
            ) from error
        if not isinstance(bind, Engine):
            raise ArgumentError(
                "a worker needs several connections, and this sessionmaker is bound to one "
                "Connection: give a sessionmaker that is bound to an Engine"
            )
        if session.twophase and any(part.transactional for lane in lanes for part in lane.parts):
            raise ArgumentError(
                "transactional handlers need sessions that commit in one phase: give the worker a "
                "sessionmaker without twophase=True"
            )
        try:
            session.commit()  # it writes nothing, but listeners may refuse it
        except Exception as error:
            raise ArgumentError(
                "a worker begins and commits its sessions itself, and this sessionmaker refuses "
                f"that ({error}): give the Engine, or a sessionmaker without the listener or option"
            ) from error
    return bind


def may_be_bound(open_session: Callable[[], Session], connection: Connection, mapper: Any) -> bool:
    """Tell whether the application's sessions write a class with a connection that is their bind.

    Sessions with a bind for each class, or with a routing of their own, choose an engine instead.
    """
    with open_session() as session:
        session.bind = connection
        return session.get_bind(**routed_to_writes(mapper)) is connection
