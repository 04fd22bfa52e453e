"""Write the schedules that the code declares by ``queue.every()`` to the table.

Several versions of an application may declare the same schedule, one after the other or at once.
The row has the declared revision, and the UPDATE replaces only older revisions. The order in which
the versions start therefore does not matter.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

from sqlalchemy import case, select, update
from sqlalchemy.exc import DataError, IntegrityError

from ..dialects.clock import as_utc, utc_now
from ..errors import ArgumentError
from ..model.columns import first_line
from ..model.keys import plain_queue, queue_name
from ..model.mapping import QueueMapping, mapping_of
from ..sessions.writer import AnySession, Writer, writing
from .cron import Cron
from .registry import Declaration, declared_for
from .table import Schedule

log = logging.getLogger("sa_jobqueue.schedules")


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


def declare(session: AnySession, entity: type[Schedule], queues: Iterable[Any]) -> Declared:
    """Write the schedules that the queues declare; see :meth:`Schedules.declare`."""
    queues = [plain_queue(queue) for queue in queues]
    mapping = mapping_of(entity)
    # Sorted, so that two processes lock the rows in the same order. Equal declarations count once.
    declarations = sorted(set(declared_for(queues)), key=lambda each: each.name)
    found: dict[str, list[str]] = {}
    with writing(session, mapping) as writer, writer.atomically():
        writer.lock_writes(mapping.table)
        now = as_utc(writer.core(select(utc_now())).scalar_one())
        for name, of_name in groupby(declarations, key=lambda each: each.name):
            what = _declare_one(writer, mapping, list(of_name), now)
            found.setdefault(what, []).append(name)
        found["undeclared"] = _undeclared(writer, entity, queues, declarations)
    declared = Declared(**{what: tuple(names) for what, names in found.items() if what})
    _warn(declared)
    return declared


def _declare_one(
    writer: Writer, mapping: QueueMapping, of_name: list[Declaration], now: datetime
) -> str:
    """Write the declaration of a name; a refusal is logged, and does not stop other names."""
    name = of_name[0].name
    if len(of_name) > 1:
        log.error("two of the queues declare a schedule %r: give one of them another name=", name)
        return "refused"
    try:
        with writer.connection.begin_nested():
            return _upsert(writer, mapping, of_name[0], now)
    except (ArgumentError, DataError, IntegrityError) as error:
        log.error("the schedule %r is not written: %s", name, first_line(error))
    return "refused"


def _upsert(writer: Writer, mapping: QueueMapping, each: Declaration, now: datetime) -> str:
    """Write a declaration; return what became of it, in the words of Declared, or nothing.

    Raises:
        ArgumentError: the row of this name is another queue's, or was made at run time.
    """
    tick = Cron(each.cron, each.timezone).after(now)
    if writer.core(_update(mapping, each, tick)).rowcount:
        return "updated"
    read = select(mapping.table).where(mapping.table.c.name == each.name)
    row = writer.core(read).first()
    if row is None:
        new = writer.database.insert_new(mapping.table)
        writer.core(new.values(next_tick=tick, run_at=tick, **each.columns))
        # Another version, or another queue, may have inserted it while we waited for its row.
        writer.core(_update(mapping, each, tick))
        _refuse_foreign(each, writer.core(read).one())
        return "added"
    _refuse_foreign(each, row)
    if row.revision != each.revision:
        return "older"
    same = all(getattr(row, name) == value for name, value in each.columns.items())
    return "" if same else "different"


def _refuse_foreign(each: Declaration, row: Any) -> None:
    """Refuse to take over the row of another queue, or one that was made at run time.

    Raises:
        ArgumentError: names the row's owner, and the way out.
    """
    if row.revision is None or row.queue != each.queue:
        whose = "add() has made it" if row.revision is None else f"it is one of {row.queue!r}"
        raise ArgumentError(
            f"{whose}. Give the declaration of {each.queue!r} another name=, or call "
            f"schedules.remove(session, {each.name!r}) and start the workers again"
        )


def _update(mapping: QueueMapping, each: Declaration, tick: datetime) -> Any:
    """Overwrite an older revision; the next tick stays where the times are the same."""
    table = mapping.table
    same = (table.c.cron == each.cron) & (table.c.timezone == each.timezone)
    # The ticks come first: MySQL's assignments see what the earlier ones wrote.
    new = {"run_at": tick, "next_tick": tick, "last_error": None}
    ticks = {name: case((same, table.c[name]), else_=value) for name, value in new.items()}
    ours = (table.c.name == each.name) & (table.c.queue == each.queue)
    statement = update(table).where(ours, table.c.revision < each.revision)
    return statement.ordered_values(*{**ticks, **each.columns}.items())


def _undeclared(
    writer: Writer, entity: type[Schedule], queues: list[Any], declarations: list[Declaration]
) -> list[str]:
    names, of_queues = {each.name for each in declarations}, set(map(queue_name, queues))
    from_code = select(entity.name).where(entity.revision.is_not(None), entity.queue.in_(of_queues))
    rows = writer.core(from_code.order_by(entity.name)).scalars()
    return [name for name in rows if name not in names]


def _warn(declared: Declared) -> None:
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
