"""What the code declares by ``queue.every()``, checked, and written to the table.

Several versions of an application may declare the same schedule, one after the other or at once.
The row has the declared revision, and the UPDATE replaces only older revisions. The order in which
the versions start therefore does not matter.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import case, select, update
from sqlalchemy.exc import DataError, IntegrityError

from ..databases.clock import as_utc, utc_now
from ..errors import ArgumentError
from ..model.columns import first_line
from ..model.keys import mapping_of_queue, plain_queue, queue_name
from ..model.mapping import QueueMapping, mapping_of
from ..sessions.writer import AnySession, Writer, writing
from .table import CRON_LENGTH, NAME_LENGTH, QUEUE_LENGTH, ZONE_LENGTH, Schedule, values_json
from .ticks import Cron, Missed

log = logging.getLogger("sa_jobqueue.schedules")

#: What each queue declares, by name.
_declarations: WeakKeyDictionary[Any, dict[str, Declaration]] = WeakKeyDictionary()


@dataclass(frozen=True, kw_only=True)
class Declaration:
    """A schedule as the code declares it.

    Attributes:
        database: the only one that has it, of several; None: each has it.
    """

    name: str
    queue: str
    cron: str
    timezone: str
    values_json: str
    missed: str
    revision: int | None
    database: str | None = None

    @property
    def row(self) -> dict[str, Any]:
        """The values of its row."""
        return {name: value for name, value in vars(self).items() if name != "database"}


def declaration(
    name: str,
    queue: Any,
    cron: str,
    *,
    timezone: str,
    values: Mapping[str, Any] | None,
    missed: str,
    revision: int | None = None,
    database: str | None = None,
) -> Declaration:
    """Check the parts of a schedule, and return its declaration.

    Raises:
        ArgumentError: the name is empty or too long, the expression or the time zone is not
            valid, the values are no attributes of the queue's class or no JSON, or something is
            of another type.
    """
    mapping = mapping_of_queue(queue)
    if missed not in list(Missed):
        raise ArgumentError(f"missed= is 'skip', 'once' or 'all', not {missed!r}")
    for what, text, most, way_out in (
        ("name", name, NAME_LENGTH, "write it as in 'nightly report'"),
        ("cron expression", cron, CRON_LENGTH, "make two schedules of a longer one"),
        ("time zone", timezone, ZONE_LENGTH, "write it as in 'Europe/Berlin'"),
        ("queue", queue_name(queue), QUEUE_LENGTH, "give its table a shorter name"),
        ("database", database or "-", NAME_LENGTH, "write the name that a worker has for it"),
    ):
        if not isinstance(text, str) or not 1 <= len(text) <= most:
            raise ArgumentError(
                f"the {what} of a schedule is text, of 1 to {most} characters, not {text!r}: "
                f"{way_out}"
            )
    Cron(cron, timezone).after(datetime.fromisoformat("2000-01-01T00:00+00:00"))
    return Declaration(
        name=name,
        queue=queue_name(queue),
        cron=cron,
        timezone=timezone,
        values_json=values_json(mapping, {} if values is None else values),
        missed=str(missed),
        revision=revision,
        database=database,
    )


def declare_every(queue: Any, cron: str, *, name: str, revision: int, **given: Any) -> None:
    """Declare a schedule of a queue; see :meth:`sa_jobqueue.JobQueue.every`."""
    if type(revision) is not int or not 0 <= revision < 2**31:
        raise ArgumentError(f"revision= is a whole number, such as 2, not {revision!r}")
    new = declaration(name, queue, cron, revision=revision, **given)
    declared = _declarations.setdefault(queue, {})
    if name in declared:
        raise ArgumentError(
            f"{queue!r} declares two schedules {name!r}: give one of them another name="
        )
    declared[name] = new


def declared_for(queues: Sequence[Any]) -> list[Declaration]:
    """Return the schedules that JobQueues declare for these tables and statuses.

    A schedule inserts jobs of a table and a status, so it is no matter which of their JobQueues
    declares it, and which a worker has.
    """
    known = {(mapping_of_queue(each).table, queue_name(each)) for each in queues}
    return [
        each
        for queue, declared in list(_declarations.items())
        if (mapping_of_queue(queue).table, queue_name(queue)) in known
        for each in declared.values()
    ]


@dataclass(frozen=True)
class Declared:
    """What became of the declarations, by name.

    Attributes:
        added: declarations that are new in the table.
        updated: declarations that replaced an older revision in the table.
        older: the table has a newer revision, which stays.
        different: the table has this revision with other contents, which stay: give the
            declaration a higher revision.
        refused: nothing was written. The row of this name belongs to another queue, or was made at
            run time; or two of the queues declare the name. The log has the reason.
        undeclared: rows of these queues that an earlier version of the code has declared; they
            go on until they are removed.
    """

    added: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    older: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()


def declare(
    session: AnySession, entity: type[Schedule], queues: Iterable[Any], database: str | None
) -> Declared:
    """Write the schedules that the queues declare; see :meth:`Schedules.declare`."""
    queues = [plain_queue(queue) for queue in queues]
    mapping = mapping_of(entity)
    # Sorted, so that two processes lock the rows in the same order. Equal declarations count once.
    every = sorted(set(declared_for(queues)), key=lambda each: each.name)
    declarations = [each for each in every if each.database in (None, database)]
    if database is None and len(declarations) < len(every):
        log.warning(
            "the schedules %s are each declared for a database, and this one has no name: see "
            "every(database=)",
            ", ".join(each.name for each in every if each.database is not None),
        )
    found: dict[str, list[str]] = {}
    with writing(session, mapping) as writer, writer.atomically():
        writer.lock_writes(mapping.table)
        now = as_utc(writer.core(select(utc_now())).scalar_one())
        for name, of_name in groupby(declarations, key=lambda each: each.name):
            first, *others = of_name
            what = "refused"
            try:  # a refusal does not stop other names
                if others:
                    raise ArgumentError("two of the queues declare it: give one another name=")
                with writer.connection.begin_nested():
                    what = _write(writer, mapping, first, now)
            except (ArgumentError, DataError, IntegrityError) as error:
                log.error("the schedule %r is not written: %s", name, first_line(error))
            found.setdefault(what, []).append(name)
        from_code = select(entity.name).where(
            entity.revision.is_not(None), entity.queue.in_(sorted(map(queue_name, queues)))
        )
        rows = writer.core(from_code.order_by(entity.name)).scalars()
        names = {each.name for each in declarations}
        found["undeclared"] = [name for name in rows if name not in names]
    declared = Declared(**{what: tuple(names) for what, names in found.items() if what})
    if declared.different:
        log.warning(
            "the schedules %s differ from those in the table, with the same revision. Those in the "
            "table stay: give the declarations a higher revision",
            ", ".join(declared.different),
        )
    if declared.undeclared:
        log.warning(
            "the schedules %s are not declared any more. They go on until you remove them: "
            "schedules.remove(session, name)",
            ", ".join(declared.undeclared),
        )
    return declared


def _write(writer: Writer, mapping: QueueMapping, each: Declaration, now: datetime) -> str:
    """Write a declaration; return what became of it, in the words of Declared, or nothing.

    Raises:
        ArgumentError: the row of this name is another queue's, or was made at run time.
    """
    tick = Cron(each.cron, each.timezone).after(now)
    if writer.core(_update(mapping, each, tick)).rowcount:
        return "updated"
    read = select(mapping.table).where(mapping.table.c.name == each.name)
    row = writer.core(read).first()
    if added := row is None:
        new = writer.database.insert_new(mapping.table)
        writer.core(new.values(next_tick=tick, run_at=tick, **each.row))
        # Another version, or another queue, may have inserted it while we waited for its row.
        writer.core(_update(mapping, each, tick))
        row = writer.core(read).one()
    if row.revision is None or row.queue != each.queue:
        whose = "add() has made it" if row.revision is None else f"it is one of {row.queue!r}"
        raise ArgumentError(
            f"{whose}. Give the declaration of {each.queue!r} another name=, or call "
            f"schedules.remove(session, {each.name!r}) and start the workers again"
        )
    if added:
        return "added"
    if row.revision != each.revision:
        return "older"
    same = all(getattr(row, name) == value for name, value in each.row.items())
    return "" if same else "different"


def _update(mapping: QueueMapping, each: Declaration, tick: datetime) -> Any:
    """Overwrite an older revision; the next tick stays where the times are the same."""
    table = mapping.table
    same = (table.c.cron == each.cron) & (table.c.timezone == each.timezone)
    # The ticks come first: MySQL's assignments see what the earlier ones wrote.
    new = {"run_at": tick, "next_tick": tick, "last_error": None}
    ticks = {name: case((same, table.c[name]), else_=value) for name, value in new.items()}
    ours = (table.c.name == each.name) & (table.c.queue == each.queue)
    statement = update(table).where(ours, table.c.revision < each.revision)
    return statement.ordered_values(*{**ticks, **each.row}.items())
