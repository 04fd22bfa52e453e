"""What autogenerate writes for the table of a queue that is there already.

Alembic would write ``op.add_column("orders", Column("status", server_default="unclaimed"))``, which
makes a job of each old row. Instead it writes this, and the upgrade refuses to run until somebody
has replaced ``...``::

    add_job_columns(op, 'orders', JobMixin, existing_rows=...)

So it is in each process that has imported this module. ``import sa_jobqueue`` does that where
Alembic is loaded, so ``env.py`` needs no line for it.

``CREATE INDEX`` locks writers out, and a changed index is dropped before it is built anew.
With this in ``env.py`` autogenerate writes ``create_index_online`` and ``drop_index_online``::

    from sa_jobqueue.migration import online_indexes

    context.configure(..., process_revision_directives=online_indexes)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import alembic.util
from alembic.autogenerate import comparators, renderers
from alembic.operations import ops
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Table

from ..model.columns import MARK, WORDS
from ..model.indexes import job_indexes
from ..model.mixins import JobMixin, PriorityMixin, QueueColumns, RetryMixin, ScheduleMixin
from ..model.status import MAX_ATTEMPTS
from .runner import compared

#: The mixins whose columns we add. RoundMixin's second table is autogenerate's, and its column is
#: like any other.
_MIXINS = (JobMixin, PriorityMixin, ScheduleMixin, RetryMixin)

# -- columns --------------------------------------------------------------


class JobColumnsOp(ops.ModifyTableOps):
    """A call of :func:`add_job_columns` or :func:`drop_job_columns`.

    It holds Alembic's own operations, one for each column: ``alembic check`` tells of these.

    Attributes:
        mixins: the mixins as they stand in the call.
        args: those of the model's ``__queue_args__`` that the columns need.
    """

    def __init__(
        self,
        change: ops.ModifyTableOps,
        columns: Sequence[ops.MigrateOperation],
        mixins: Sequence[str],
        args: Mapping[str, Any],
    ) -> None:
        super().__init__(change.table_name, columns, schema=change.schema)
        self.mixins = mixins
        self.args = args

    def reverse(self) -> Any:
        """Return the way back."""
        columns: Any = [column.reverse() for column in reversed(self.ops)]
        return JobColumnsOp(self, columns, self.mixins, self.args)


# Alembic 1.18 calls comparators by priority; before, it called them as they had registered.
_PRIORITIES = getattr(alembic.util, "DispatchPriority", None)
_AFTER_TABLES: Any = {"priority": _PRIORITIES.LAST} if _PRIORITIES else {}


@comparators.dispatch_for("schema", **_AFTER_TABLES)
def ask_for_rows(context: Any, upgrade: ops.UpgradeOps, schemas: Any) -> None:
    """Have our functions add the columns of old tables that plain ADD COLUMN would fill wrongly.

    They come first, since they commit, and refuse before anything else has changed. Columns that
    a queue loses go last, so that the way back adds them in the same way.
    """
    first, last = [], []
    for change in upgrade.ops:
        if not isinstance(change, ops.ModifyTableOps):
            continue
        if added := _added(change):
            first.append(added)
        if dropped := _dropped(change):
            last.append(dropped)
        taken = [each for ours in (added, dropped) if ours for each in ours.ops]
        change.ops = [each for each in change.ops if each not in taken]
    upgrade.ops = [*first, *upgrade.ops, *last]


def _added(change: ops.ModifyTableOps) -> JobColumnsOp | None:
    """Return the call that adds the columns of our mixins to a table; None: it needs none.

    A status would make each row a job. The default of run_at is the clock: SQLite refuses such a
    column, and InnoDB copies the table.
    """
    added = {each.column: each for each in change.ops if isinstance(each, ops.AddColumnOp)}
    table = next((column.table for column in added), None)
    if not isinstance(table, Table):
        return None
    names = {column.info[MARK]: column.name for column in table.columns if MARK in column.info}
    new = {role: added[table.c[name]] for role, name in names.items() if table.c[name] in added}
    if not new.keys() & {"status", "run_at"}:
        return None
    return _call_for(change, new, names, _args_of(table, names))


def _dropped(change: ops.ModifyTableOps) -> JobColumnsOp | None:
    """Return the call that drops the columns of a former queue; None: the table was none.

    The database tells a queue by our names of its columns, and by the status that new rows get.
    """
    gone = {each.column_name: each for each in change.ops if isinstance(each, ops.DropColumnOp)}
    if not gone.keys() >= JobMixin.__queue_attributes__.keys():
        return None
    default: Any = gone["status"].to_column().server_default
    if "'unclaimed'" not in str(getattr(default, "arg", "")):
        return None
    return _call_for(change, gone, {name: name for name in gone}, {})


def _call_for(
    change: ops.ModifyTableOps,
    columns: Mapping[str, ops.MigrateOperation],
    names: Mapping[str, str],
    args: Mapping[str, Any],
) -> JobColumnsOp:
    """Return the call for the mixins of columns, which stand by their roles."""
    mixins = [mixin for mixin in _MIXINS if _is_of(mixin, columns)]
    roles = {role for mixin in mixins for role in mixin.__queue_attributes__}
    return JobColumnsOp(
        change,
        [operation for role, operation in columns.items() if role in roles],
        [_written(mixin, names) for mixin in mixins],
        {name: value for name, value in args.items() if name in {"names", *roles}},
    )


def _is_of(mixin: type[QueueColumns], roles: Collection[str]) -> bool:
    """Tell whether all columns of a mixin are among the roles, or its status."""
    if mixin is ScheduleMixin and "attempts" in roles:
        return False  # their run_at is that of RetryMixin
    return "status" in roles if mixin is JobMixin else {*roles} >= {*mixin.__queue_attributes__}


def _written(mixin: type[QueueColumns], names: Mapping[str, str]) -> str:
    """Return a mixin with the table's names for its columns, as Python."""
    other = {role: names[role] for role in mixin.__queue_attributes__ if names[role] != role}
    named = ", ".join(f"{role}={name!r}" for role, name in other.items())
    return f"{mixin.__name__}.named({named})" if other else mixin.__name__


def _args_of(table: Table, names: Mapping[str, str]) -> dict[str, Any]:
    """Return a mapped table's ``__queue_args__``, as far as its new columns need them."""
    words = [column.info[WORDS] for column in table.columns if column.info.get(WORDS)]
    args: dict[str, Any] = {"names": dict(words[0])} if words else {}
    if "max_attempts" in names:
        default: Any = table.c[names["max_attempts"]].server_default
        given = None if default is None else int(default.arg)
        if given != MAX_ATTEMPTS:
            args["max_attempts"] = given
    return args


_QUESTION = (
    '# Put "done" in the place of ..., so that no row that is there becomes a job, or "unclaimed",',
    "# so that each does, or a criterion in SQL for those that do.",
)


@renderers.dispatch_for(JobColumnsOp)
def _render_columns(context: Any, change: JobColumnsOp) -> list[str]:
    adds = isinstance(change.ops[0], ops.AddColumnOp)
    function = "add_job_columns" if adds else "drop_job_columns"
    mixins = ", ".join(mixin.partition(".")[0] for mixin in change.mixins)
    context.imports.add(f"from sa_jobqueue import {mixins}")
    context.imports.add(f"from sa_jobqueue.migration import {function}")
    given = [context.opts["alembic_module_prefix"].rstrip("."), repr(change.table_name)]
    given += change.mixins
    asks = adds and "JobMixin" in mixins
    if adds:
        given.append(f"existing_rows={'...' if asks else None}")
    if adds and change.args:
        given.append(f"queue_args={dict(change.args)!r}")
    if change.schema is not None:
        given.append(f"schema={change.schema!r}")
    return [*(_QUESTION if asks else ()), f"{function}({', '.join(given)})"]


# -- indexes --------------------------------------------------------------


@dataclass(eq=False)
class OnlineIndexOp(ops.MigrateOperation):
    """A call of :func:`create_index_online` or :func:`drop_index_online`."""

    plain: ops.CreateIndexOp | ops.DropIndexOp
    replace: bool = False

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return what ``alembic check`` says of it."""
        return self.plain.to_diff_tuple()


@renderers.dispatch_for(OnlineIndexOp)
def _render_index(context: Any, operation: OnlineIndexOp) -> str:
    """Return Alembic's own call of the plain operation, as a call of ours."""
    name = "create_index" if isinstance(operation.plain, ops.CreateIndexOp) else "drop_index"
    context.imports.add(f"from sa_jobqueue.migration import {name}_online")
    written = cast("str", renderers.dispatch(operation.plain)(context, operation.plain))
    module, _, arguments = written.partition(f"{name}(")
    more = ", replace=True" if operation.replace else ""
    return f"{name}_online({module.rstrip('.')}, {arguments.removesuffix(')')}{more})"


def online_indexes(
    context: MigrationContext, revision: Any, directives: list[ops.MigrationScript]
) -> None:
    """Have autogenerate change the indexes of queues online, where the table is there already.

    Give it to ``context.configure(process_revision_directives=online_indexes)``.
    """
    queues = {
        (table.schema, table.name)
        for metadata in compared(context)
        for table in metadata.tables.values()
        if job_indexes(table)
    }
    for script in directives:
        for direction in (*script.upgrade_ops_list, *script.downgrade_ops_list):
            fresh = {
                (each.schema, each.table_name)
                for each in direction.ops
                if isinstance(each, ops.CreateTableOp | ops.DropTableOp)
            }
            parts = [_apart(each, queues - fresh) for each in direction.ops]
            direction.ops = [each for part in parts for each in part]


def _apart(
    operation: ops.MigrateOperation, queues: set[tuple[str | None, str]]
) -> Iterator[ops.MigrateOperation]:
    """Yield a change of a queue's table: new columns and indexes, dropped indexes and columns.

    Apart, since with ``render_as_batch`` the other changes stand in a block of their own. An index
    is dropped when its successor of another name is built, so that claims always have one, and so
    that InnoDB always has one for a foreign key. But an index of a column that changes is dropped
    first: MySQL makes no TEXT of a column that has an index. Columns are dropped last: until an
    index is replaced, the old one may have them. PostgreSQL would drop it with them, and SQLite
    would refuse.
    """
    if (
        not isinstance(operation, ops.ModifyTableOps)
        or isinstance(operation, JobColumnsOp)
        or (operation.schema, operation.table_name) not in queues
    ):
        yield operation
        return
    creates = [change for change in operation.ops if isinstance(change, ops.CreateIndexOp)]
    drops = [change for change in operation.ops if isinstance(change, ops.DropIndexOp)]
    columns = [change for change in operation.ops if isinstance(change, ops.DropColumnOp)]
    apart = (ops.CreateIndexOp, ops.DropIndexOp, ops.DropColumnOp)
    operation.ops = [change for change in operation.ops if not isinstance(change, apart)]
    altered = [change for change in operation.ops if isinstance(change, ops.AlterColumnOp)]
    changing = {change.column_name for change in altered}
    created, dropped = ({change.index_name for change in each} for each in (creates, drops))
    gone = [drop for drop in drops if drop.index_name not in created]
    first = [drop for drop in gone if changing.intersection(drop.to_index().columns.keys())]
    yield from map(OnlineIndexOp, first)
    if operation.ops:
        yield operation
    for create in creates:
        yield OnlineIndexOp(create, replace=create.index_name in dropped)
    yield from (OnlineIndexOp(drop) for drop in gone if drop not in first)
    if columns:
        yield ops.ModifyTableOps(operation.table_name, columns, schema=operation.schema)
