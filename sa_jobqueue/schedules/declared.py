"""How what the code declares by ``queue.every()`` comes into the table.

Several versions of an application may declare the same schedule, one after the other or at once.
The row has the revision that was declared; the UPDATE names the revisions that it leaves, which
are older. So the order in which they start does not matter.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import case, select, update

from ..dialects.clock import as_utc, utc_now
from ..errors import ArgumentError
from ..model.mapping import QueueMapping, mapping_of
from ..model.queue_name import plain_queue, queue_name
from ..sessions.writer import AnySession, Writer, writing
from .cron import Cron
from .declaration import Declaration
from .registry import declared_by, names_declared, refuse_nameless
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
        undeclared: rows of these queues that an earlier version of the code has declared; they
            go on until they are removed.
    """

    added: tuple[str, ...] = ()
    updated: tuple[str, ...] = ()
    older: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    undeclared: tuple[str, ...] = ()


def declare(session: AnySession, entity: type[Schedule], queues: Iterable[Any]) -> Declared:
    """Write the schedules that the queues declare; see :meth:`Schedules.declare`."""
    queues = [plain_queue(queue) for queue in queues]
    refuse_nameless(queues)
    mapping = mapping_of(entity)
    # Two who declare at once take the rows in one order.
    declarations = sorted(declared_by(queues), key=lambda each: each.name)
    found: dict[str, list[str]] = {}
    with writing(session, mapping) as writer, writer.atomically():
        writer.lock_writes(mapping.table)
        now = as_utc(writer.core(select(utc_now())).scalar_one())
        for each in declarations:
            found.setdefault(_upsert(writer, mapping, each, now), []).append(each.name)
        # Queues with criteria of their own share a table, and may be declared elsewhere.
        of_queues = set(map(queue_name, queues))
        found["undeclared"] = _undeclared(writer, entity, of_queues, names_declared())
    declared = Declared(**{what: tuple(names) for what, names in found.items() if what})
    _warn(declared)
    return declared


def _upsert(writer: Writer, mapping: QueueMapping, each: Declaration, now: datetime) -> str:
    """Write a declaration; return what became of it, in the words of Declared, or nothing."""
    table = mapping.table.c
    tick = Cron(each.cron, each.timezone).after(now)
    if writer.core(_update(mapping, each, tick)).rowcount:
        return "updated"
    read = select(mapping.table).where(table.name == each.name)
    row = writer.core(read).first()
    if row is None:
        new = writer.database.insert_new(mapping.table)
        writer.core(new.values(next_tick=tick, run_at=tick, **each.columns))
        # An older version may have inserted it while we waited for its row.
        writer.core(_update(mapping, each, tick))
        return "added"
    if row.revision is None:
        raise ArgumentError(
            f"the schedule {each.name!r} was made at run time: give the declaration another name"
        )
    if row.revision != each.revision:
        return "older"
    same = all(getattr(row, name) == value for name, value in each.columns.items())
    return "" if same else "different"


def _update(mapping: QueueMapping, each: Declaration, tick: datetime) -> Any:
    """Overwrite an older revision; the next tick stays where the times are the same."""
    table = mapping.table
    same = (table.c.cron == each.cron) & (table.c.timezone == each.timezone)
    # The ticks come first: MySQL's assignments see what the earlier ones wrote.
    new = {"run_at": tick, "next_tick": tick, "last_error": None}
    ticks = {name: case((same, table.c[name]), else_=value) for name, value in new.items()}
    older = table.c.revision < each.revision
    statement = update(table).where(table.c.name == each.name, older)
    return statement.ordered_values(*{**ticks, **each.columns}.items())


def _undeclared(
    writer: Writer, entity: type[Schedule], queues: set[str], names: set[str]
) -> list[str]:
    from_code = select(entity.name).where(entity.revision.is_not(None), entity.queue.in_(queues))
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
